# Copyright (c) mmib contributors. All rights reserved.
"""What can't be done is refused in one line that says what to change."""
import os

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


# Each command, and a keyword of its refusal.
@pytest.mark.parametrize('command, keyword', [
    ('train own.py --ratio 0.8', '--ratio needs --infobatch'),
    ('train own.py --policy Neyman', '--policy needs --infobatch'),
    ('train own.py --infobatch --steps 1', '--steps needs --shorten'),
    ('train own.py --shorten --policy MeanThreshold', '--steps'),
    ('train own.py --score --shorten', 'give one of them'),
    ('train own.py --score --ratio 0.5', '--ratio needs --infobatch'),
    ('convert own.py out.py --policy ScoreOnly --ratio 0.5', 'ScoreOnly'),
    ('train own.py --infobatch --policy neyman', 'did you mean Neyman?'),
    ('train own.py --infobatch --ratio 0.1', '`train_cfg.max_iters = 2`'),
    ('train own.py --infobatch --delta 85', '`delta`'),
    (f'train own.py {OPTION} custom_hooks.0.policy.num_tierz=3',
     '`num_tiers`'),
    (f'train own.py {OPTION} train_cfg.max_iters=5', 'dataset.indices'),
    *[(f'{command} own.py{option} {lists}', keyword)
      for command, option in (('train', ''), ('train', ' --infobatch'),
                              ('convert', ' out.py'),
                              ('forecast', ' --infobatch'))
      for lists, keyword in (('--without none.csv', 'none.csv'),
                             ('--subset empty.txt', 'no images'),
                             ('--subset review.csv', '--without'),
                             ('--without review.csv', 'no images to leave'),
                             ('--without verdict.csv', '`bad`'),
                             ('--relabel empty.txt', 'column `image'),
                             ('--relabel review.csv', 'no images to leave'))],
    ('train own.py --relabel wrong.csv', '`without` (--without)'),
    *[(command, 'no config onw.py')
      for command in ('train onw.py', 'train onw.py --infobatch',
                      'forecast onw.py', 'convert onw.py out.py')],
    *[(command, "'gone.py'")
      for command in ('train baseless.py', 'test baseless.py own.pth',
                      'forecast baseless.py', 'convert baseless.py out.py')],
    *[(f'train tuned.py {options}', 'no checkpoint gone.pth')
      for options in ('', '--resume')],
    ('train own.py --resume --work-dir stopped', 'stopped/last_checkpoint'),
    ('test own.py gone.pth', 'no checkpoint gone.pth'),
    ('review none.csv', 'none.csv'),
    ('review verdict.csv', 'line 2 of verdict.csv'),
    ('train pruned.py --shorten', 'already'),
    ('train mmseg::a/b', '`mmseg::a/b`'),
    ('convert mmsegg::a/b out.py', 'mmseg::'),
    ('train own.py --cfg-options train_dataloader.dataset.type=Indx',
     'Indx is not in'),
    ('report runs', 'runs/a, runs/b/c'),
    ('test own.pth own.py', 'CONFIG first'),
    ('convert own.pth out.py', 'own.pth is not a config'),
    ('convert own.py own.py', 'own.py exists'),
    ('convert own.py link.py', 'link.py exists'),
    ('convert based.py own.py', 'own.py exists'),
    ('convert mmseg::upernet/upernet_r50_4xb4-80k_ade20k-512x512x out.py',
     'Close'),
    ('shorten pruned.py out.py', 'already'),
])
def test_refusals(run, tmp_path, command, keyword):
    """Nothing is written."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / 'link.py').symlink_to('own.py')
    for name in ('a', 'b/c'):
        (tmp_path / 'runs' / name / '20260101_000000').mkdir(parents=True)
    with pytest.raises(SystemExit) as stop:
        run(*command.split())
    text = stop.value.code
    assert text.startswith('Error: ') and keyword in text, text
    if not command.startswith('convert'):
        assert len(text.splitlines()) == 1
    for name, content in FILES.items():
        assert (tmp_path / name).read_text() == content
    assert not os.path.exists('out.py')
    if 'csv' in command or 'txt' in command:
        assert not os.path.exists('work_dirs')


def test_other_errors_keep_their_traceback(run, tmp_path):
    (tmp_path / 'own.py').write_text(CONFIG + '\n1 / 0\n')
    with pytest.raises(ZeroDivisionError):
        run('train', 'own.py', '--infobatch')
