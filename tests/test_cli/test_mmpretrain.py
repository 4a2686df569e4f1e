# Copyright (c) mmib contributors. All rights reserved.
"""The commands with configs of MMPretrain."""
import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip('mmpretrain.models', exc_type=ImportError)

from mmengine.config import Config  # noqa: E402

from tests.test_tasks.test_classification.small_classifier import \
    config  # noqa: E402

from .test_train import text_of  # noqa: E402

ROOT = Path(__file__).parents[2]


def baseline(name):
    """A config in this folder, of a small training without pruning."""
    cfg = config('unused')
    cfg.train_dataloader.sampler.type = 'InfiniteSampler'
    cfg.custom_hooks = []
    Path(f'{name}.py').write_text(text_of(cfg))
    return f'{name}.py'


def test_train_runs_the_script_of_mmpretrain(run):
    # No other library's script has this option.
    run('train', baseline('small'), '--infobatch', '--no-persistent-workers')
    log, = Path('work_dirs/small-24-infobatch').glob('*/*.log')
    text = log.read_text()
    assert 'InfoBatch: 24 iterations covered' in text


@pytest.mark.parametrize('in_config', [True, False])
def test_resume_of_a_fine_tuning(run, in_config):
    """It goes on from its own checkpoint, of 24 iterations."""
    call = [
        'train',
        baseline(f'tuned{in_config}'), '--no-persistent-workers',
        '--cfg-options', 'default_hooks.checkpoint.type=CheckpointHook',
        'default_hooks.checkpoint.by_epoch=False'
    ]
    run(*call, 'default_hooks.checkpoint.interval=40', '--work-dir', 'before')
    saved, = Path('before').glob('iter_*.pth')
    if in_config:
        with open(call[1], 'a') as file:
            file.write(f'\nload_from = {str(saved)!r}\n')
    else:
        call += [f'load_from={saved}']
    call += [
        'default_hooks.checkpoint.interval=24', '--infobatch', '--work-dir',
        'after'
    ]
    run(*call)
    run(*call, '--resume')
    text = ''.join(path.read_text() for path in Path('after').glob('*/*.log'))
    assert re.findall(r'resumed epoch: \d+, iter: (\d+)', text) == ['24']


def test_a_folder_of_images(run):
    """The config of the example, converted and by hand as the page says."""
    noise = np.random.default_rng(0).integers(256, size=(11, 32, 32, 3))
    for name in ('cat', 'dog', 'frog', 'ship'):
        for i, image in enumerate(noise):
            split = 'train' if i else 'test'
            path = Path('data', 'pictures', split, name, f'{i}.jpg')
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), image)
    config = ROOT / 'examples' / 'own_data' / 'resnet18_1xb32_pictures.py'
    # By epochs, the schedule stays as it is.
    page = (ROOT / 'docs' / 'config.md').read_text()
    by_hand = re.search(r'\n(custom_imports = .*?\n)train_cfg', page, re.S)[1]
    Path('folder_1xb32_four.py').write_text(config.read_text())
    Path('by_hand.py').write_text("_base_ = 'folder_1xb32_four.py'\n" +
                                  by_hand)
    options = [
        '--cfg-options', 'train_cfg.max_epochs=4',
        *(f'{split}_dataloader.{option}' for split in ('train', 'val')
          for option in ('num_workers=0', 'persistent_workers=False'))
    ]
    run('train', 'folder_1xb32_four.py', '--infobatch', *options)
    run('train', 'by_hand.py', *options)
    for name in ('folder_1xb32-infobatch_four', 'by_hand'):
        log, = Path('work_dirs', name).glob('*/*.log')
        text = log.read_text()
        assert '40 of 40 images' in text
        assert 'Epoch(val) [4][1/1]    accuracy/top1' in text
        assert 'of 160 visits of images were pruned' in text


@pytest.mark.parametrize('label, changes, message', [
    ('frog', {}, 'line 2 of review.csv has the label `frog`, .* are cat, dog'),
    ('cat', dict(classes=None), 'CustomDataset, whose classes are not known'),
    ('cat', dict(type='MultiLabelDataset'), 'can\'t change the classes of '
     'MultiLabelDataset, whose images have no `gt_label` of one class'),
])
def test_labels_that_no_training_can_take(run, label, changes, message):
    """Nothing is built or written."""
    Path('review.csv').write_text(
        f'image,verdict,rank,label\n0.png,wrong,1,{label}\n')
    Path('labels.txt').write_text('0.png 0\n1.png 1\n')
    Path('labels.json').write_text(
        '{"metainfo": {}, "data_list": [{"img_path": "0.png", '
        '"gt_label": [0, 1]}]}')
    config = baseline('refused')
    cfg = Config.fromfile(config)
    multi = 'type' in changes
    cfg.train_dataloader.dataset = dict(
        dict(
            type='CustomDataset',
            ann_file=f'labels.{"json" if multi else "txt"}',
            classes=['cat', 'dog'],
            pipeline=[dict(type='PackInputs')]), **changes)
    cfg.dump(config)
    with pytest.raises(SystemExit, match=message):
        run('train', config, '--relabel', 'review.csv')
    assert not Path('work_dirs').exists()


def test_other_labels_are_another_training(run):
    """Of the same file name, too."""
    for i in range(8):
        cv2.imwrite(f'{i}.png', np.full((16, 16, 3), 30 * i, np.uint8))
    Path('labels.txt').write_text(''.join(f'{i}.png {i % 2}\n'
                                          for i in range(8)))
    config = baseline('labels')
    cfg = Config.fromfile(config)
    cfg.train_dataloader.dataset = dict(
        type='CustomDataset',
        ann_file='labels.txt',
        classes=['cat', 'dog'],
        pipeline=[dict(type='LoadImageFromFile'),
                  dict(type='PackInputs')])
    cfg.default_hooks = dict(checkpoint=dict(type='CheckpointHook'))
    cfg.dump(config)
    arguments = ('train', config, '--infobatch', '--relabel', 'review.csv',
                 '--no-persistent-workers')
    for label, others, message in (('dog', (), None),
                                   ('', (), 'has a run with other images or'),
                                   ('', ('--resume', ),
                                    'has other images, or other labels'),
                                   ('dog', ('--resume', ), None)):
        Path('review.csv').write_text(
            f'image,verdict,rank,label\n0.png,wrong,1,{label}\n')
        if message is None:
            run(*arguments, *others)
            folder, = Path('work_dirs').iterdir()
            assert folder.name == 'labels-24-infobatch_relabel_review'
            continue
        with pytest.raises(SystemExit, match=message):
            run(*arguments, *others)


@pytest.mark.parametrize('arguments', [
    ['mmpretrain::resnet/resnet18_8xb16_cifar10', '--infobatch'],
    ['mmib::resnet/resnet18_8xb16-infobatch_cifar10'],
])
def test_names_of_configs(run, arguments):
    """Up to the data, which isn't there."""
    with pytest.raises(RuntimeError, match='Cannot find CIFAR10'):
        run('train', *arguments, '--cfg-options',
            'train_dataloader.dataset.download=False')
    dumped, = Path('work_dirs/resnet18_8xb16-infobatch_cifar10').glob('*.py')
    cfg = Config.fromfile(str(dumped))
    assert cfg.train_cfg.max_epochs == 200
    assert cfg.train_dataloader.sampler.type == 'InfoBatchSampler'
    assert cfg.custom_hooks[-1].policy == dict(type='Neyman', ratio=0.6)


def test_mmsegmentation_is_not_needed(tmp_path):
    name = 'mmpretrain::resnet/resnet18_8xb16_cifar10'
    code = ("import sys; sys.modules['mmseg'] = None\n"
            'from mmib_cli import main\n'
            f"main(['convert', {name!r}, {str(tmp_path)!r}])\n"
            f"main(['forecast', {name!r}, '--infobatch', '--cfg-options', "
            "'train_dataloader.dataset.download=False'])")
    command = [sys.executable, '-c', code]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert 'It runs about 60 % of the iterations' in result.stdout
    assert "The data isn't there (Cannot find CIFAR10" in result.stdout
    assert (tmp_path / 'resnet18_8xb16-infobatch_cifar10.py').exists()
