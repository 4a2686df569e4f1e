# Copyright (c) mmib contributors. All rights reserved.
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmib.plan_record import PlanRecord
from mmib.report import figures
from mmib.report.lines import parse, read_lines
from mmib.report.read import read_run

from .work_dirs import BEGINS, ENDS, PLANS, SCALARS, plan, write_start

RECORDS = [{'begins': BEGINS}, *PLANS, {'ends': ENDS}]
PLAN_SCALARS = {
    'infobatch/kept_share': 0.75,
    'infobatch/threshold': 0.5,
    'infobatch/mean_score': 1.0,
    'infobatch/saved_iters': 0.0,
    'step': 4
}
LINES = [
    *RECORDS, *SCALARS, PLAN_SCALARS,
    dict(SCALARS[0], epoch=1),
    plan(7, 8.0, 9, mean_ratio=[0.9, 0.8, None, None])
]


def write_texts(folder, records, scalars):
    write_start(folder, [], [])
    start = folder / '20260101_000000'
    (start / 'infobatch.jsonl').write_text(''.join(f'{r}\n' for r in records))
    (start / 'vis_data' / 'scalars.json').write_text(''.join(
        f'{line}\n' for line in scalars))
    return str(folder)


def is_damaged(text):
    try:
        parse(text)
    except Exception:
        return True
    return False


@settings(max_examples=100)
@given(st.sampled_from(LINES), st.sampled_from(LINES), st.data())
def test_half_a_line(line, following, data):
    """With another one behind it, or alone: no line is made of a half."""
    text = json.dumps(line)
    half = text[:data.draw(st.integers(1, len(text) - 1))]
    assert is_damaged(half) and is_damaged(half + json.dumps(following))


@pytest.mark.parametrize('line', LINES)
def test_what_is_written_is_a_record(line):
    read = parse(json.dumps(line))
    assert (read.to_dict() if isinstance(read, PlanRecord) else read) == line


@pytest.mark.parametrize('text', [
    '{"kept": 3}',
    '{"loss": 3}',
    '{"begins": 3}',
    '{"begins": {"iter": 3}}',
    '{"ends": {"iter": 3}}',
    '{"step": null}',
    '3',
    '[]',
    '{"step": 4, "lo',
    json.dumps(dict(PLANS[1], tiers=3)),
    json.dumps(dict(PLANS[1], iter=float('nan'))),
    json.dumps(dict(PLANS[1], iter=float('inf'))),
])
def test_what_is_no_record(tmp_path, text):
    assert is_damaged(text)
    path = tmp_path / 'log'
    path.write_text(f'{text}\n{json.dumps(ENDS)}\n' * 2 + '{"iter": 7, "ep')
    # Half a line at the end is what a kill leaves.
    assert read_lines(str(path)) == ([], 4)
    folder = write_texts(
        tmp_path / 'run',
        [json.dumps(RECORDS[0]), text, *map(json.dumps, RECORDS[1:]), text],
        map(json.dumps, SCALARS))
    run = read_run(folder)
    assert len(run.plans) == 5 and run.finished
    note, = run.notes
    assert note.startswith('2 lines of `infobatch.jsonl` and `scalars.json`')


@pytest.mark.parametrize('value', [float('nan'), float('inf')])
def test_a_loss_may_be_infinite(tmp_path, value):
    line = dict(SCALARS[0], loss=value, unweighted_loss=value)
    folder = write_texts(tmp_path / 'run', map(json.dumps, RECORDS),
                         [json.dumps(line)])
    run = read_run(folder)
    assert len(run.loss.values) == 1 and not run.notes
    assert figures.progress(run, None)


def test_without_the_first_line(tmp_path):
    """As where a disk was full."""
    folder = write_texts(tmp_path / 'run', map(json.dumps, PLANS),
                         map(json.dumps, SCALARS))
    run = read_run(folder)
    assert run.has_infobatch and not run.plans
    assert len(run.loss.values) == 4
    assert 'what was pruned is left out' in run.notes[0]
