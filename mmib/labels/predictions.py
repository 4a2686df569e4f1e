# Copyright (c) mmib contributors. All rights reserved.
"""What the network of a checkpoint says of an image."""
import copy
import math
from typing import Any, Callable, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from mmengine.utils import track_iter_progress
from torch import Tensor

from .images import CannotShow, TrainingImages, in_short

# Libraries of which predictions are shown.
_SCOPES = ('mmseg', 'mmpretrain', 'mmdet')


class Predictor:
    """The network of a checkpoint, on whole images, as in a test.

    Raises:
        CannotShow: If the model can't be built, or predicts no classes.
    """

    def __init__(self, config: Config, weights: dict, device: str) -> None:
        scope = config.get('default_scope')
        if scope not in _SCOPES:
            raise CannotShow('predictions are made of models of '
                             'MMSegmentation and MMDetection, and of '
                             'classifiers of MMPretrain alone')
        try:
            with DefaultScope.overwrite_default_scope(scope):
                self._pipeline = Compose(_test_pipeline_of(config))
                self._model = _build(config)
            # Those of losses, which may be wrapped, don't matter.
            missing = self._model.load_state_dict(
                weights, strict=False).missing_keys
            self._model.to(device).eval()
        except CannotShow:
            raise
        # What a model may raise isn't known.
        except Exception as error:
            raise CannotShow(in_short(error)) from error
        if not hasattr(self._model, 'predict'):
            raise CannotShow(
                f'{type(self._model).__name__} doesn\'t tell classes')
        if missing:
            raise CannotShow(f'the checkpoint lacks `{missing[0]}`')

    @torch.no_grad()
    def __call__(self, info: dict) -> Any:
        """Predict an image by its :meth:`TrainingImages.info`. The sample has
        ``pred_sem_seg`` and ``seg_logits``, ``pred_label``, or
        ``pred_instances``."""
        try:
            return self._model.test_step(
                pseudo_collate([self._pipeline(info)]))[0]
        except Exception as error:
            raise CannotShow(in_short(error)) from error


def _build(config: Config) -> BaseModel:
    part = copy.deepcopy(config.model)
    if config.get('data_preprocessor') is not None:
        part.setdefault('data_preprocessor', config.data_preprocessor)
    # The checkpoint has the weights: none are fetched.
    for child in (part, part.get('backbone') or {}):
        if child.get('pretrained'):
            child['pretrained'] = None
    return MODELS.build(part)


def _test_pipeline_of(config: Config) -> list:
    """The steps of a test, but for those that load labels."""
    for name in ('test_dataloader', 'val_dataloader'):
        part = (config.get(name) or {}).get('dataset')
        while isinstance(part, dict):
            if part.get('pipeline'):
                return [
                    step for step in copy.deepcopy(part['pipeline'])
                    if 'LoadAnnotations' not in str(step.get('type'))
                ]
            part = (part.get('datasets') or [part.get('dataset')])[0]
    raise CannotShow('the config has no pipeline for tests')


def probabilities_of(sample: Any) -> np.ndarray:
    """The probability of each class in each pixel, of what
    :class:`Predictor` returns, float32 of shape (C, H, W)."""
    if 'seg_logits' not in sample:
        raise CannotShow('the network doesn\'t tell classes of pixels')
    logits: Tensor = sample.seg_logits.data.float()
    if len(logits) == 1:
        # Of a binary model mmseg gives the probability.
        return torch.cat([1 - logits, logits]).cpu().numpy()
    return logits.softmax(0).cpu().numpy()


def pixel_losses(sample: Any, labels: np.ndarray) -> np.ndarray:
    """Compare the labels of the pixels of an image with what
    :class:`Predictor` returns: the loss of each pixel, of shape (H, W), NaN
    where the label is no class."""
    if 'seg_logits' not in sample:
        raise CannotShow('the network doesn\'t tell classes of pixels')
    logits: Tensor = sample.seg_logits.data
    if labels.shape != logits.shape[1:]:
        raise CannotShow(f'labels of {labels.shape} pixels don\'t fit a '
                         f'prediction of {tuple(logits.shape[1:])}')
    if len(logits) == 1:
        # Of a binary model mmseg gives the probability.
        logits = torch.cat([1 - logits, logits]).clamp(1e-7).log()
    target = torch.from_numpy(labels.astype(np.int64)).to(logits.device)
    ignored = (target < 0) | (target >= len(logits))
    losses = F.cross_entropy(
        logits[None].float(),
        target.masked_fill(ignored, 0)[None],
        reduction='none')[0]
    return losses.masked_fill(ignored, math.nan).cpu().numpy()


def rank_by_pixels(
    reader: TrainingImages, predict: Predictor,
    of_pixels: Callable[[np.ndarray], float]
) -> Tuple[np.ndarray, Optional[str], Tuple[float, float]]:
    """Predict all images, and make a number of the losses of the pixels of
    each: these numbers, NaN of images where it fails; why it fails, of the
    last of them; and :func:`mean_and_guess`."""
    values = np.full(len(reader.numbers), np.nan)
    reason, total, counts = None, 0., np.zeros(1 << 16, np.int64)
    for place, number in enumerate(track_iter_progress(reader.numbers)):
        try:
            labels = reader.read(number).get('gt_seg_map')
            if labels is None:
                raise CannotShow('the pipeline loads no labels')
            losses = pixel_losses(predict(reader.info(number)), labels)
        except CannotShow as error:
            reason = str(error)
            continue
        values[place] = of_pixels(losses)
        total += np.nansum(losses, dtype=np.float64)
        labels = labels[~np.isnan(losses)]
        counts += np.bincount(labels, minlength=len(counts))
    return values, reason, mean_and_guess(total, counts)


def mean_and_guess(total: float, counts: np.ndarray) -> Tuple[float, float]:
    """The mean pixel loss, and that of guessing each pixel by how frequent the
    classes are, from the sum of the losses of pixels and how many of them each
    class labels."""
    pixels = max(counts.sum(), 1)
    shares = counts[counts > 0] / pixels
    return total / pixels, float(-(shares * np.log(shares)).sum())
