# Copyright (c) mmib contributors. All rights reserved.
"""Why the newest plan kept an image or left it out, asked of a work folder."""
import numpy as np
import pytest
from mmengine.runner import Runner

import mmib_cli
from mmib.errors import Refusal
from mmib_cli.report import explain_image
from tests.helpers.segmentors import infobatch_hook, write_images
from tests.helpers.work_dirs import StoppedAt, files_config


@pytest.fixture(scope='module')
def stopped(tmp_path_factory):
    """A training stopped while it prunes: its folder, and its plans."""
    base = tmp_path_factory.mktemp('explained')
    write_images(str(base / 'data'), 12)
    runner = Runner.from_cfg(files_config(base / 'data', base / 'run'))
    plans = []
    infobatch_hook(runner).plan_observers.append(
        lambda record, plan: plans.append((record, plan)))
    runner.register_hook(StoppedAt(20))
    with pytest.raises(KeyboardInterrupt):
        runner.train()
    return base / 'run', infobatch_hook(runner).run, plans


def test_images_of_the_newest_plan(stopped):
    """The command answers as the run does, and as the plan says, for an image
    of each tier that the plan keeps, and one that the plan leaves out."""
    work_dir, run, _ = stopped
    newest, scores = run.stream.newest, run.reading.scores
    record = newest.record
    assert record.kept < 12
    # The dataset sorts the names.
    names, seen = sorted(f'{i}.jpg' for i in range(12)), set()
    for index, name in enumerate(names):
        kept = bool(np.unpackbits(newest.keeps)[index])
        tier = 1 if scores[index] < np.float32(record.threshold) else 2
        if (kept, tier) in seen:
            continue
        text = explain_image(str(work_dir), name)
        assert ('keeps' if kept else 'leaves out') + f' {name}' in text
        assert f'was {scores[index]:.4g}' in text
        assert f'tier {tier} of 2' in text
        share = record.tiers[tier - 1].kept / record.tiers[tier - 1].size
        assert f'keeps {100 * share:.3g} %' in text
        seen.add((kept, tier))
    assert {True, False} == {kept for kept, _ in seen}
    assert {1, 2} == {tier for _, tier in seen}


def test_the_command_prints_and_writes_no_page(stopped, capsys):
    work_dir, run, _ = stopped
    mmib_cli.main(['report', str(work_dir), '--image', '3.jpg'])
    assert f'Epoch {run.stream.newest.record.epoch}' in capsys.readouterr().out
    assert not (work_dir / 'report.html').exists()


def test_what_is_refused(stopped, tmp_path):
    work_dir, *_ = stopped
    with pytest.raises(Refusal, match='99.jpg names no image of the dataset'):
        explain_image(str(work_dir), '99.jpg')
    with pytest.raises(Refusal):
        explain_image(str(tmp_path), '3.jpg')


def test_a_run_that_is_over(tmp_path):
    """Its newest plan is that of annealing. An older checkpoint has the plan
    that pruned."""
    write_images(str(tmp_path / 'data'), 12)
    folder = tmp_path / 'run'
    runner = Runner.from_cfg(
        files_config(tmp_path / 'data', folder,
                     **{'default_hooks.checkpoint.interval': 20}))
    runner.train()
    last = str(max(folder.glob('iter_*.pth'), key=iteration_of).name)
    text = explain_image(str(folder), '3.jpg')
    newest, older = text.splitlines()
    assert newest.startswith(f'{last}: ') and 'keeps all images' in newest
    assert 'Its score was' in older and not older.startswith(last)
    for path in folder.glob('iter_*.pth'):
        if path.name != last:
            path.unlink()
    text = explain_image(str(folder), '3.jpg')
    assert text.startswith(newest) and 'no plan that pruned' in text


def iteration_of(path):
    return int(path.stem.partition('_')[2])
