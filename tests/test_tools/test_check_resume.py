# Copyright (c) mmib contributors. All rights reserved.
import copy
import json
import os
import os.path as osp
import subprocess
import sys

import check_resume
import pytest
from check_resume import Records, compare, compare_with_plans

ROOT = osp.dirname(osp.dirname(osp.dirname(osp.abspath(__file__))))
SMALL_CHECKS = """
import json, sys, tempfile
from check_resume import Change, Kill, References, Setting, run_check

with tempfile.TemporaryDirectory() as work_dir:
    references = References(work_dir)
    for check in (
            # Its plans are shorter than the lookahead.
            Kill('all', Setting('Budget', 1, 2, size=13), 36, 0.02),
            Kill('one', Setting('MeanThreshold', 2, 0), 47, 0., victim=0),
            Change('ranks', 'MeanThreshold', ((2, 3), (1, 2)), (34, ))):
        print(json.dumps(run_check(check, references)))
"""


def test_killed_trainings_are_resumed_exactly():
    # Not forked from here: other tests have left threads.
    run = subprocess.run([sys.executable, '-c', SMALL_CHECKS],
                         env=dict(
                             os.environ,
                             PYTHONPATH=f'{ROOT}:{osp.join(ROOT, "tools")}',
                             OMP_NUM_THREADS='1',
                             TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD='1'),
                         capture_output=True,
                         text=True)
    assert run.returncode == 0, run.stderr
    lines = [
        json.loads(line) for line in run.stdout.splitlines()
        if line.startswith('{')
    ]
    everyone, one, ranks = lines
    assert all(map(check_resume.is_equal, lines)), lines
    assert everyone['steps_when_killed'] >= 36
    assert everyone['resumed_from'] >= 33
    # What came after the checkpoint was trained on again.
    assert everyone['steps_compared'] == 72 + (
        everyone['steps_when_killed'] - everyone['resumed_from'])
    assert everyone['survivors'] == {}
    assert one['survivors'].keys() == {'1'}
    assert one['survivors']['1'].startswith('exit status 1, RuntimeError: ')
    assert one['resumed_from'] >= 44 and one['steps_compared'] >= 2 * 72
    assert ranks['resumed_from'][0] % 11 == 0
    assert ranks['slots_compared'] == 2 * 72 + 4 * ranks['resumed_from'][0]
    assert ranks['pruned_plans'] >= 4


def test_the_last_checkpoint_is_named_after_a_kill(tmp_path):
    """One that came after MMEngine had emptied the name."""
    work_dir = str(tmp_path)
    check_resume.name_last_checkpoint(work_dir)
    assert check_resume.last_checkpoint(work_dir) == 0
    for iteration in (99, 110):
        (tmp_path / f'iter_{iteration}.pth').touch()
    name = tmp_path / 'last_checkpoint'
    name.write_text(str(tmp_path / 'iter_99.pth'))
    check_resume.name_last_checkpoint(work_dir)
    assert check_resume.last_checkpoint(work_dir) == 99
    name.write_text('')
    check_resume.name_last_checkpoint(work_dir)
    assert check_resume.last_checkpoint(work_dir) == 110
    assert name.read_text() == str(tmp_path / 'iter_110.pth')


def records(*slots, scale=1.):
    """What a rank wrote of two iterations."""
    steps = [
        dict(iter=i, slots=s, loss=(scale * (i + 0.1)).hex())
        for i, s in enumerate(slots)
    ]
    return Records(steps, [(0, 0, None)], dict(model='m', scores='s'))


def test_compare_notices_differences():
    reference = [
        records([[0, 1.]], [[2, 1.]], [[4, 2.]]),
        records([[1, 1.]], [[3, 1.]], [[5, 2.]])
    ]
    before = [Records(r.steps[:2], r.plans, None) for r in reference]
    after = [Records(r.steps[1:], [], r.end) for r in reference]

    def results(changed_before=before, changed_after=after):
        line = compare(reference, changed_before, changed_after, 1)
        assert line.pop('steps_compared') > 0
        return [name for name, equal in line.items() if not equal]

    assert results() == []
    changed = copy.deepcopy(after)
    changed[1].steps[1]['slots'] = [[5, 2.0000002]]
    assert results(changed_after=changed) == ['streams_equal']
    changed = copy.deepcopy(before)
    changed[1].steps[1]['loss'] = (1.1000000000000003).hex()
    assert results(changed_before=changed) == ['losses_equal']
    changed = copy.deepcopy(after)
    del changed[0].steps[0]
    assert results(changed_after=changed) == ['streams_equal', 'losses_equal']
    changed = copy.deepcopy(after)
    changed[0].end.update(model='n', scores='t')
    assert results(changed_after=changed) == ['weights_equal', 'scores_equal']


PLANS = [(0, None), (3, [[1, 1.5], [2, 1.5]]), (5, [[2, 1.5], [0, 1.5]]),
         (7, None)]
STREAM = [[2, 1.], [0, 1.], [1, 1.], [1, 1.5], [2, 1.5], [2, 1.5], [0, 1.5],
          [1, 1.], [0, 1.]]


def test_plans_are_compared():
    line = compare_with_plans(STREAM, PLANS, 3, [3, 4, 8])
    assert line == dict(
        pruned_plans=2,
        open_plans=[None, [1, 1], None],
        problems=[],
        plans_equal=True)


@pytest.mark.parametrize(
    'stream, plans',
    [
        (STREAM[:4] + STREAM[5:], PLANS),  # lost
        (STREAM[:4] + STREAM[3:], PLANS),  # twice
        (STREAM[:4] + [[2, 1.]] + STREAM[5:], PLANS),  # without its weight
        (STREAM[:-1] + [[0, 1.5]], PLANS),  # with a weight in a full pass
        (STREAM[:-1] + [[1, 1.]], PLANS),  # twice in a full pass
        (STREAM, PLANS[:1] + PLANS[2:]),  # a plan that nobody drew
        (STREAM, PLANS[:-1]),
    ])
def test_wrong_slots_are_noticed(stream, plans):
    line = compare_with_plans(stream, plans, 3, [])
    assert not line['plans_equal'] and line['problems']


def test_missing_iterations_and_plans_that_differ():
    ranks = [records([[0, 1.]], [[2, 1.]]), records([[1, 1.]], [[3, 1.]])]
    assert check_resume.slots_of(ranks, 0, 2) == [[i, 1.] for i in range(4)]
    for begin, end in ((1, 2), (0, 3)):
        with pytest.raises(RuntimeError, match='missing'):
            check_resume.slots_of(ranks, begin, end)
    assert check_resume.plans_of(ranks, 2) == [(0, None)]
    assert check_resume.plans_of(ranks, 0) == []
    ranks[1].plans.append((1, 3, [[0, 1.]]))
    with pytest.raises(RuntimeError, match='different plans'):
        check_resume.plans_of(ranks, 2)


def test_a_stopped_script_goes_on(tmp_path, monkeypatch, capsys):
    run = []

    def run_check(check, references):
        run.append(check.name)
        return dict(
            name=check.name,
            policy='',
            streams_equal=check.name[:6] != 'kill 1')

    monkeypatch.setattr(check_resume, 'run_check', run_check)
    out = tmp_path / 'resume.jsonl'
    args = ['--kills', '1', '--seed', '7', '--out', str(out)]
    assert check_resume.main(args) == 0
    assert len(run) == 5 and run[0] == 'kill 0 of seed 7'
    before = out.read_bytes()
    assert check_resume.main(args) == 0
    assert len(run) == 5 and out.read_bytes() == before
    args[1] = '2'
    assert check_resume.main(args) == 1
    assert run[5:] == ['kill 1 of seed 7']
    assert len(out.read_text().splitlines()) == 6
    assert '1 of 6 checks differ. kill 1' in capsys.readouterr().out


def test_kills_are_spread():
    kills = check_resume.draw_kills(30, 0)
    assert kills == check_resume.draw_kills(40, 0)[:30]
    assert len({kill.setting for kill in kills}) == 18
    assert sum(kill.victim is not None for kill in kills) == 10
    assert len({kill.step for kill in kills}) > 15
