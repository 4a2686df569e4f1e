# Copyright (c) mmib contributors. All rights reserved.
from argparse import Namespace

import pytest

from mmib import convert, shorten
from mmib_cli.answer import answer

from .test_schedule import EPOCHS, baseline

NEYMAN = ('until iteration 510 of 600. It keeps about 0.560 of the images, '
          'with a mean weight of 1.79. It runs about 60 % of the iterations '
          'that the baseline needs for as many passes.')
NO_DATA = ('These figures leave out that the first pass is full. `mmib '
           'forecast` reads the data and counts it.')


def summary(before, after):
    """What is said of a run whose data isn't read."""
    args = Namespace(config='a.py', ratio=None)
    return answer(before, after, args, advises=True).details


@pytest.mark.parametrize('arguments, text', [
    (dict(), NEYMAN + f' {NO_DATA}'),
    (dict(policy=dict(type='Neyman'), normalize=True, start=0.25),
     'keeps about 0.474 of the images, with a mean weight of 1.00. It runs '
     'about 60 % of the'),
    (dict(ratio=0.2, policy=dict(type='Neyman', min_keep=0.25)),
     'until iteration 170 of 200. It keeps about 0.250 of the images, with a '
     'mean weight of 4.00. It runs about 28 % of the'),
    (dict(ratio=0.6, policy=dict(type='MeanThreshold')),
     'MeanThreshold(ratio=0.5) prunes until iteration 510 of 600. How much it '
     'keeps depends on the losses.'),
    (dict(policy=dict(type='QuantileTiers', rescale=False)),
     'It keeps about 0.525 of the images, with a mean weight of 1.00. '),
    (dict(ratio=1, policy=dict(type='RandomPruning', ratio=0.5), delta=0.5),
     'It runs about 67 % of the iterations that the baseline needs for as '
     f'many passes. {NO_DATA} Warning: the run is as long as before and '
     'makes more passes. Lower the ratio to save iterations.'),
])
def test_summary(arguments, text):
    cfg = baseline(custom_hooks=[dict(type='EMAHook')])
    lines = summary(cfg, convert(cfg, **arguments))
    assert text in ' '.join(lines)
    assert (NO_DATA in lines) is ('depends on' not in text)


def test_summary_of_other_trainings():
    # AdamW divides by the size of the gradient.
    cfg = baseline(optim_wrapper=dict(optimizer=dict(type='AdamW')))
    assert summary(cfg, convert(cfg))[1].endswith('mean weight of 1.00.')
    lines = summary(EPOCHS, convert(EPOCHS))
    # Where epochs are counted, the first one is known to be full.
    assert lines[0].endswith('epoch 8 of 9.') and len(lines) == 3
    # Of the short baseline there is nothing to tell.
    assert summary(cfg, shorten(cfg)) == []


def test_batches_by_shape_are_given_up():
    sampler = dict(type='mmdet.AspectRatioBatchSampler', drop_last=True)
    before = baseline(
        train_dataloader=dict(
            sampler=dict(type='InfiniteSampler'), batch_sampler=sampler))
    after = convert(before)
    assert after.train_dataloader.batch_sampler is None
    assert after.train_dataloader.drop_last
    told = 'Warning: `AspectRatioBatchSampler` is dropped'
    assert summary(before, after)[-1].startswith(told)
