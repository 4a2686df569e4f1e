# Copyright (c) mmib contributors. All rights reserved.
"""What can't be done is refused in one line that says what to change."""
import os
import re

import pytest

from .test_train import CONFIG

BASED = "_base_ = 'own.py'\n"
FILES = {
    'own.py': CONFIG,
    'pruned.py': CONFIG + "\ncustom_hooks = [dict(type='InfoBatchHook')]\n",
    'based.py': BASED,
    'baseless.py': "_base_ = 'middle.py'\n",
    'middle.py': "_base_ = 'gone.py'\n",
    'tuned.py': CONFIG + "\nload_from = 'gone.pth'\n",
    'stopped/last_checkpoint': '/elsewhere/iter_9.pth',
    'own.pth': '',
    'empty.txt': '\n',
    'review.csv': 'image,verdict,rank\n3,hard,1\n',
    'wrong.csv': 'image,verdict,rank,label\n0,wrong,1,even\n',
    'verdict.csv': 'image,verdict,rank\n3,bad,1\n',
}
OPTION = '--infobatch --cfg-options '
NO_CONFIG = 'There is no config onw.py; a relative path'
EXISTS = ' exists: remove it, or give another OUT'
PRUNES = '.* InfoBatch already: '


@pytest.mark.parametrize('command, message', [
    ('train own.py --ratio 0.8', '--ratio needs --infobatch, or --shorten'),
    ('train own.py --policy Neyman', '--policy needs --infobatch'),
    ('train own.py --infobatch --steps 1', '--steps needs --shorten'),
    ('train own.py --shorten --policy MeanThreshold',
     'How long the steps of a run with MeanThreshold.*--steps'),
    ('train own.py --score --shorten',
     '--infobatch prunes, .* give one of them'),
    ('train own.py --score --ratio 0.5', '--ratio needs --infobatch'),
    ('convert own.py out.py --policy ScoreOnly --ratio 0.5',
     '.*ScoreOnly prunes nothing and runs all iterations'),
    ('train own.py --infobatch --policy neyman',
     r'neyman is .* \(did you mean Neyman\?\): correct --policy of the'),
    ('train own.py --infobatch --ratio 0.1',
     '`train_cfg.max_iters = 2` .* by a larger --ratio where'),
    ('train own.py --infobatch --delta 85',
     '`delta` of InfoBatchHook in .* must be in .* but got 85.0'),
    (f'train own.py {OPTION} custom_hooks.0.policy.num_tierz=3',
     '`num_tierz` in the `policy` .* did you mean `num_tiers`'),
    (f'train own.py {OPTION} train_cfg.max_iters=5',
     '`train_cfg.max_iters = 5` with 2 .*dataset.indices'),
    *[(f'{command} own.py{option} {lists}', message)
      for command, option in (('train', ''), ('train', ' --infobatch'),
                              ('convert', ' out.py'),
                              ('forecast', ' --infobatch'))
      for lists, message in (
          ('--without none.csv', "none.csv can't be read: No such file"),
          ('--subset empty.txt', 'empty.txt has no images'),
          ('--subset review.csv', 'review.csv is a review.*--without'),
          ('--without review.csv', 'review.csv has no images to leave'),
          ('--without verdict.csv', '.*has the verdict `bad`'),
          ('--relabel empty.txt', 'line 1 of empty.txt has no column `image'),
          ('--relabel review.csv', 'review.csv has no images to leave'))],
    ('train own.py --relabel wrong.csv', '.*IndexDataset, whose images have no'
     r'.*: leave out the wrong images by `without` \(--without\)'),
    *[(command, NO_CONFIG)
      for command in ('train onw.py', 'train onw.py --infobatch',
                      'forecast onw.py', 'convert onw.py out.py')],
    *[(command, "baseless.py inherits 'gone.py', and there is no file "
       '.*/gone.py: correct `_base_`')
      for command in ('train baseless.py', 'test baseless.py own.pth',
                      'forecast baseless.py', 'convert baseless.py out.py')],
    *[(f'train tuned.py {options}', 'There is no checkpoint gone.pth: correct')
      for options in ('', '--resume')],
    ('train own.py --resume --work-dir stopped',
     'There is no checkpoint /elsewhere/iter_9.pth: correct the path in '
     'stopped/last_checkpoint, or remove'),
    ('test own.py gone.pth',
     'There is no checkpoint gone.pth: correct CHECKPOINT'),
    ('review none.csv', "none.csv can't be read: No such file"),
    ('review verdict.csv', 'line 2 of verdict.csv has the verdict `bad`'),
    ('train pruned.py --shorten', PRUNES),
    ('train mmseg::a/b', '.*has no config `mmseg::a/b`'),
    ('convert mmsegg::a/b out.py', '`mmsegg::` is not a library: .* mmseg::'),
    ('train own.py --cfg-options train_dataloader.dataset.type=Indx',
     'Indx is not in the mmseg::dataset registry'),
    ('report runs', r'runs has .* below it, .* one of runs/a, runs/b/c\.'),
    ('test own.pth own.py', 'own.pth is not a config, .* CONFIG first'),
    ('convert own.pth out.py', 'own.pth is not a config'),
    ('convert own.py own.py', f'own.py{EXISTS}'),
    ('convert own.py link.py', f'link.py{EXISTS}'),
    ('convert based.py own.py', f'own.py{EXISTS}'),
    ('convert mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512x out.py',
     '.*upernet_r50.*Close'),
    ('shorten pruned.py out.py', PRUNES),
])
def test_refusals(run, tmp_path, command, message):
    """Nothing is written."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / 'link.py').symlink_to('own.py')
    for name in ('a', 'b/c'):
        (tmp_path / 'runs' / name / '20260101_000000').mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        run(*command.split())
    assert re.match(f'(?s)Error: {message}', stop.value.code)
    if not command.startswith('convert'):
        assert len(stop.value.code.splitlines()) == 1
    for name, text in FILES.items():
        assert (tmp_path / name).read_text() == text
    assert not os.path.exists('out.py')
    if 'csv' in command or 'txt' in command:
        assert not os.path.exists('work_dirs')


def test_other_errors_keep_their_traceback(run, tmp_path):
    (tmp_path / 'own.py').write_text(CONFIG + '\n1 / 0\n')
    with pytest.raises(ZeroDivisionError):
        run('train', 'own.py', '--infobatch')
