# Copyright (c) mmib contributors. All rights reserved.
import copy
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mmib.plan_record import PlanRecord
from mmib.report import figures, page
from mmib.report.lines import parse, read_lines
from mmib.report.read import read_run
from mmib.report.write import write_report

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
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from([0, -1, 1e-320, 1e308, 10**400, 10**15, '\ud800', '$']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.text() | st.sampled_from(['$_$', '\ud800']), inner, max_size=4))


def texts(draw):
    """A line as it is written, or not."""
    kind = draw(st.sampled_from(['written', 'changed', 'cut', 'other']))
    if kind == 'other':
        return json.dumps(draw(VALUES))
    line = copy.deepcopy(draw(st.sampled_from(LINES)))
    if kind == 'changed':
        part = line
        while True:
            keys = list(part) if isinstance(part, dict) else range(len(part))
            key = draw(st.sampled_from(keys))
            inner = part[key]
            if isinstance(inner,
                          (dict, list)) and inner and draw(st.booleans()):
                part = inner
                continue
            if draw(st.booleans()):
                part[key] = draw(VALUES)
            else:
                del part[key]
            break
        if draw(st.booleans()):
            line[draw(st.text())] = draw(VALUES)
    text = json.dumps(line)
    return text[:draw(st.integers(0, len(text)))] if kind == 'cut' else text


FILES = st.lists(st.composite(texts)(), max_size=8)


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


@settings(max_examples=150)
@given(FILES, FILES, st.booleans())
def test_any_lines(records, scalars, begins):
    """Those that are no records are left out."""
    records = [json.dumps(RECORDS[0])] * begins + records
    with tempfile.TemporaryDirectory() as folder:
        folder = write_texts(Path(folder) / 'run', records, scalars)
        run = read_run(folder)
        page.summary(run, run)
        skipped = sum(map(is_damaged, records + scalars))
        if run.num_starts:
            found = any(' of `infobatch.jsonl` and' in n for n in run.notes)
            assert found == (skipped > 0)


@settings(max_examples=5)
@given(FILES, FILES)
@example([json.dumps(line) for line in RECORDS],
         [json.dumps(dict(line, **{'$x_$': 1.0})) for line in SCALARS])
def test_any_lines_can_be_drawn(records, scalars):
    with tempfile.TemporaryDirectory() as folder:
        records = [json.dumps(line) for line in RECORDS[:3]] + records
        folder = write_texts(Path(folder) / 'run', records, scalars)
        write_report(folder, out=f'{folder}/report.html')


@pytest.mark.parametrize('line', LINES)
def test_what_is_written_is_a_record(line):
    read = parse(json.dumps(line))
    assert (read.to_dict() if isinstance(read, PlanRecord) else read) == line


@pytest.mark.parametrize('text', [
    '{"kept": 3}',
    '{"begins": {}}',
    '{"ends": []}',
    '{"iter": null, "step": 3}',
    '{"step": 3.5, "loss": 1.0}',
    '{"step": 3, "mIoU": 1e300}',
    '[' * 100000,
    '{"a":' * 100000,
    '3',
    json.dumps(dict(PLANS[1], variance_ratio=[1.0])),
    json.dumps(dict(PLANS[1], variance_ratio=[1, 2, 3, 1e300])),
    json.dumps(dict(PLANS[1], iter=float('nan'))),
    json.dumps(dict(PLANS[1], tiers=[[0, 0]])),
    json.dumps(dict(PLANS[1], histogram=dict(edges=[0]))),
    json.dumps(dict(PLANS[1], kept=0)),
    json.dumps({'begins': dict(BEGINS, pass_length=0)}),
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
    """Version 0.1.0 had no `infobatch.jsonl` at all."""
    folder = write_texts(tmp_path / 'run', map(json.dumps, PLANS),
                         map(json.dumps, SCALARS))
    run = read_run(folder)
    assert run.has_infobatch and not run.plans
    assert len(run.loss.values) == 4
    assert 'what was pruned is left out' in run.notes[0]
