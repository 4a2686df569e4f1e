# Copyright (c) mmib contributors. All rights reserved.
"""The predictions of a network, and how they differ from the labels."""
import copy
import math
import time
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, Tuple, Union

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import MODELS, DefaultScope
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from ..errors import Refusal
from .boxes import Boxes, confident_classes, without_ignored
from .images import CannotShow, DatasetImages, in_short
from .rankings import IGNORED, compare_pixels
from .relabel import has_one_class

# Heads whose maps are sums of masks, each by the probability of its class.
_SUM_MASKS = ('MaskFormerHead', 'Mask2FormerHead', 'SideAdapterCLIPHead')
# Libraries whose predictions are shown.
_SCOPES = ('mmseg', 'mmpretrain', 'mmdet')


class Predictor:
    """The network of a checkpoint. It predicts whole images, as in a test.

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
                self.pipeline = Compose(_test_pipeline_of(config))
                self._model = _build(config)
            # Weights of losses, which may be wrapped, don't matter.
            missing = self._model.load_state_dict(
                weights, strict=False).missing_keys
            self._model.to(device).eval()
        except CannotShow:
            raise
        # A model may raise anything.
        except Exception as error:
            raise CannotShow(in_short(error)) from error
        if not hasattr(self._model, 'predict'):
            raise CannotShow(
                f'{type(self._model).__name__} predicts no classes')
        if missing:
            raise CannotShow(f'the checkpoint lacks `{missing[0]}`')

    @torch.no_grad()
    def predict(self, inputs: List[Any]) -> List[Any]:
        """Predict images, as one batch if they have the same size.

        Args:
            inputs (list): What the pipeline returned for each image.

        Returns:
            list: A sample for each image, with ``pred_sem_seg`` and
            ``seg_logits``, ``pred_label``, or ``pred_instances``; or a
            :class:`CannotShow` that says why the image can't be predicted.
        """
        if len({each['inputs'].shape for each in inputs}) == 1:
            try:
                samples = list(self._model.test_step(pseudo_collate(inputs)))
                head = type(getattr(self._model, 'decode_head', None))
                if head.__name__ in _SUM_MASKS:
                    for maps in [sample.seg_logits for sample in samples]:
                        shares = maps.data / maps.data.sum(0)
                        maps.data = shares.clamp(1e-7).log()
                return samples
            except Exception as error:
                if len(inputs) == 1:
                    return [CannotShow(in_short(error))]
        return [sample for each in inputs for sample in self.predict([each])]

    def __call__(self, info: dict) -> Any:
        """Predict one image by its :meth:`DatasetImages.info`."""
        sample, = self.predict([_load(self.pipeline, info)])
        if isinstance(sample, CannotShow):
            raise sample
        return sample


def _load(pipeline: Callable, info: dict) -> Any:
    try:
        return pipeline(info)
    # A pipeline may raise anything.
    except Exception as error:
        raise CannotShow(in_short(error)) from error


def _build(config: Config) -> BaseModel:
    part = copy.deepcopy(config.model)
    if config.get('data_preprocessor') is not None:
        part.setdefault('data_preprocessor', config.data_preprocessor)
    # The checkpoint has the weights: no others are downloaded.
    for child in (part, part.get('backbone') or {}):
        if child.get('pretrained'):
            child['pretrained'] = None
    return MODELS.build(part)


def _test_pipeline_of(config: Config) -> list:
    """Return the pipeline of a test without the steps that load labels."""
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


def compare(sample: Any, labelled: dict) -> Dict[str, Any]:
    """Compare the labels of an image with a prediction.

    Args:
        sample (DataSample): The prediction, from :class:`Predictor`.
        labelled (dict): The labels, from :meth:`DatasetImages.read`.

    Returns:
        dict[str, Any]: For each task, the classes that are ``labelled`` in the
        image and the classes that are ``predicted``, in detection with
        confidence: int of shape (C,), each class once.

        - Segmentation: ``losses``, the loss of each pixel, and ``gaps``, the
          probability of the predicted class less the probability of the
          labelled class, of shape (H, W), NaN where a pixel has no class.
        - Classification: ``losses`` of shape (), and ``leads``, the
          log-probability of each class less the log-probability of the
          labelled class, of shape (C,), NaN for the labelled class.
        - Detection: ``boxes``, :class:`~mmib.labels.boxes.Boxes`.
    """
    if 'bboxes' in sample.get('pred_instances', {}):
        boxes = _boxes(sample.pred_instances, labelled)
        return dict(
            boxes=boxes,
            labelled=np.unique(boxes.labels),
            predicted=confident_classes(boxes))
    if 'seg_logits' in sample and 'gt_seg_map' in labelled:
        return _compare_pixels(sample.seg_logits.data, labelled)
    if 'pred_score' in sample and has_one_class(labelled):
        log = sample.pred_score.double().clamp(1e-30).log().cpu().numpy()
        label = int(labelled['gt_label'])
        if not 0 <= label < len(log):
            raise CannotShow(f'its label is {label}, and the network has '
                             f'{len(log)} classes')
        leads = log - log[label]
        leads[label] = math.nan
        return dict(
            losses=-log[label],
            leads=leads,
            labelled=np.array([label]),
            predicted=log.argmax(keepdims=True))
    if 'seg_logits' in sample or 'pred_score' in sample:
        raise CannotShow('the dataset has no label of it, or several')
    raise CannotShow('the network predicts no probabilities of classes')


def labelled_boxes(labelled: dict) -> List[dict]:
    """Return the instances of an image that have a box."""
    return [
        each for each in labelled.get('instances') or ()
        if np.size(each.get('bbox')) == 4
    ]


def _boxes(found: Any, labelled: dict) -> Boxes:
    """Return the labelled and the predicted boxes, except in a crowd, whose
    labels are ignored in training too."""
    if 'instances' not in labelled:
        raise CannotShow('the dataset has no boxes of it')
    instances = labelled_boxes(labelled)
    boxes = np.reshape([each['bbox'] for each in instances], (-1, 4))
    labels = np.array([each['bbox_label'] for each in instances], np.int64)
    predicted = [
        getattr(found, name).double().cpu().numpy()
        for name in ('bboxes', 'labels', 'scores')
    ]
    if len(found) and not predicted[0].any():
        # The boxes of SOLO, for example, are zeros.
        raise CannotShow('the network predicts masks without boxes')
    return without_ignored(
        Boxes(boxes.astype(np.float64), labels, *predicted),
        np.array([bool(each.get('ignore_flag')) for each in instances], bool))


def _compare_pixels(logits: Tensor, labelled: dict) -> Dict[str, np.ndarray]:
    labels = labelled['gt_seg_map'].astype(np.int64)
    if labels.shape != logits.shape[1:]:
        raise CannotShow(f'labels of {labels.shape} pixels don\'t fit a '
                         f'prediction of {tuple(logits.shape[1:])}')
    if len(logits) == 1:
        # Binary models of MMSegmentation predict a probability.
        logits = torch.cat([1 - logits, logits]).clamp(1e-7).log()
    unknown = np.setdiff1d(labels[labels >= len(logits)], IGNORED) % 256
    if len(unknown):
        # The image would be ranked by what is left of its labels.
        raise Refusal(
            f'{labelled.get("seg_map_path")} has the labels '
            f'{str(unknown[:5].tolist())[1:-1]}, and the network has the '
            f'classes 0 to {len(logits) - 1}: correct the mask, or '
            '`reduce_zero_label` or `classes` of the dataset, which make '
            'labels of its numbers.')
    labels = np.where(labels < 0, IGNORED, labels)
    return compare_pixels(logits, torch.from_numpy(labels))


class _Inputs(Dataset):
    """A dataset of network inputs and labels, or of reasons why they are
    missing."""

    def __init__(self, reader: DatasetImages, pipeline: Callable) -> None:
        self._reader, self._pipeline = reader, pipeline

    def __len__(self) -> int:
        return len(self._reader.numbers)

    def __getitem__(self, place: int) -> Tuple[Any, Any]:
        number = self._reader.numbers[place]
        try:
            info = self._reader.info(number)
            # Only masks have to be read.
            is_known = has_one_class(info) or 'instances' in info
            labelled = info if is_known else self._reader.read(number)
            kept = {
                name: labelled[name]
                for name in ('gt_seg_map', 'gt_label', 'seg_map_path',
                             'instances') if name in labelled
            }
            return _load(self._pipeline, info), kept
        except CannotShow as error:
            return None, str(error)


def _with_progress(batches: DataLoader) -> Iterator[Any]:
    """Yield batches, and show the progress: as a bar on a terminal, and
    elsewhere, such as in a log file, as a line for each 5 %."""
    console, size = Console(stderr=True), len(batches)
    if console.is_terminal:
        yield from track(batches, 'Predicting', console=console)
        return
    begin, shown = time.monotonic(), 0
    for done, batch in enumerate(batches, 1):
        yield batch
        percent = 100 * done // size
        if percent >= shown + 5:
            shown = percent
            left = (time.monotonic() - begin) * (size - done) / done
            console.print(f'Predicting: {percent} %, '
                          f'{timedelta(seconds=round(left))} left')


def compare_all(reader: DatasetImages, predictor: Predictor,
                loader: dict) -> Iterator[Union[Dict[str, Any], str]]:
    """Predict all images. For each image, yield the result of :func:`compare`,
    or the reason why there is none.

    Args:
        reader (DatasetImages): The images.
        predictor (Predictor): The network.
        loader (dict): Config of a data loader, whose batch size and number of
            workers are used.
    """
    batches = DataLoader(
        _Inputs(reader, predictor.pipeline),
        loader.get('batch_size') or 1,
        num_workers=loader.get('num_workers') or 0,
        collate_fn=list)
    for batch in _with_progress(batches):
        inputs = [each for each, _ in batch if each is not None]
        samples = iter(predictor.predict(inputs))
        for each, labelled in batch:
            if each is None:
                yield labelled
                continue
            try:
                sample = next(samples)
                if isinstance(sample, CannotShow):
                    raise sample
                yield compare(sample, labelled)
            except CannotShow as error:
                yield str(error)
