# Copyright (c) mmib contributors. All rights reserved.
"""The images of a training set: their paths, pixels and labels."""
import math
import os.path as osp
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS, TRANSFORMS, DefaultScope
from mmengine.utils import import_modules_from_strings, track_iter_progress
from torch import Tensor, nn

from ..datasets import image_numbers, image_path, unwrap_repeats
from .config import ConfigError, buildable, imports_of, scope_of

IGNORED = 255
# Share of the pixels that ranks an image by its predictions.
TOP_PIXELS = 0.05


class ImageLosses(NamedTuple):
    """Pixel losses of an image, the higher, the less its labels are like the
    predictions.

    Args:
        pixels (float): Mean of the highest 5 % of the pixels. NaN where
            nothing is labelled.
        sums (np.ndarray): Sum over the pixels of each class, of shape (C,).
        counts (np.ndarray): Labelled pixels of each class, of shape (C,).
    """

    pixels: float
    sums: np.ndarray
    counts: np.ndarray


class TrainingImages:
    """Reads the images of a training set by number.

    Args:
        config (dict): Config of the training.
        num_images (int): Images that the checkpoint has.
        trust (bool): Whether the config may import and build anything.

    Raises:
        ConfigError: If the data set can't be built, or has another number of
            images. The text goes on after "because".
    """

    def __init__(self, config: dict, num_images: int, trust: bool) -> None:
        if trust:
            for name in imports_of(config):
                import_modules_from_strings(name)
        part = (config.get('train_dataloader') or {}).get('dataset')
        part = buildable(config, part, trust)
        pipeline = _pipeline_of(part)
        _empty_pipelines(part)
        try:
            with DefaultScope.overwrite_default_scope(scope_of(config)):
                dataset = unwrap_repeats(DATASETS.build(part))
                self._loaders = [
                    TRANSFORMS.build(step)
                    for step in buildable(config, pipeline, trust)
                ]
            numbers = image_numbers(dataset)
        # What a data set may raise isn't known.
        except Exception as error:
            raise ConfigError(f'{type(error).__name__}: {error}') from error
        images, self._indices = np.unique(numbers, return_index=True)
        if len(images) != num_images:
            raise ConfigError(f'the data set has {len(images)} images here, '
                              f'and the checkpoint {num_images}')
        self.has_masks = scope_of(config) != 'mmpretrain'
        """bool: Whether labels are those of pixels, not of images."""
        self._dataset = dataset
        self._trust = trust
        self._folders = _folders_of(dataset)

    @property
    def classes(self) -> List[str]:
        """list[str]: Names of the classes, none where the data set doesn't
        tell."""
        return list(self._metainfo.get('classes') or [])

    @property
    def palette(self) -> np.ndarray:
        """np.ndarray: RGB colour of each label, uint8 of shape (256, 3)."""
        colours = np.random.default_rng(0).integers(
            40, 230, (256, 3), dtype=np.uint8)
        known = (self._metainfo.get('palette') or [])[:256]
        if len(known):
            colours[:len(known)] = known
        return colours

    @property
    def _metainfo(self) -> dict:
        return getattr(self._dataset, 'metainfo', None) or {}

    @property
    def has_pixels(self) -> bool:
        """bool: Whether the data set holds its images itself."""
        return (hasattr(self._dataset, 'get_data_info')
                and 'img' in self._dataset.get_data_info(0))

    def names(self, labels: Any) -> str:
        """Name classes.

        Args:
            labels (int or sequence[int]): Their numbers.

        Returns:
            str: Their names, or numbers where these aren't known.
        """
        numbers = np.atleast_1d(np.asarray(labels)).tolist()
        classes = self.classes
        return ', '.join(
            str(classes[n] if n < len(classes) else n) for n in numbers)

    def paths(self) -> List[Optional[str]]:
        """Path of each image, None where the data set doesn't tell."""
        return [image_path(self._dataset, int(i)) for i in self._indices]

    def read(self, number: int) -> dict:
        """Load an image and its labels.

        Args:
            number (int): Number of the image.

        Returns:
            dict: ``img`` (BGR, uint8 of shape (H, W, 3)) and, where there are
            labels, ``gt_seg_map`` (of shape (H, W)) or ``gt_label`` (numbers
            of classes). ``held`` are the pixels that the data set itself
            holds.

        Raises:
            ConfigError: If it can't be shown.
        """
        if not hasattr(self._dataset, 'get_data_info'):
            raise ConfigError('the data set has no files')
        results = self._dataset.get_data_info(int(self._indices[number]))
        for name in ('img_path', 'seg_map_path'):
            if results.get(name) and not self._trust:
                self._check_is_inside(results[name])
        try:
            if 'img' in results:
                # MMPretrain's data sets that hold pixels have grey ones, or
                # RGB.
                results['held'] = image = np.asarray(results['img'])
                results['img'] = (
                    cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
                    if image.ndim == 2 else image[..., ::-1])
            else:
                for load in self._loaders:
                    results = load(results)
            image = results['img']
        except Exception as error:
            raise ConfigError(f'{type(error).__name__}: {error}') from error
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ConfigError('the image isn\'t one of three colours')
        return results

    def _check_is_inside(self, path: str) -> None:
        path = osp.realpath(path)
        if not any(
                osp.commonpath([path, folder]) == folder
                for folder in self._folders):
            raise ConfigError(
                'the file is outside of the folders of the data set')


def _pipeline_of(part: Any) -> list:
    """What loads images and labels, of the first pipeline in the config of a
    data set."""
    pipeline = None
    while isinstance(part, dict) and pipeline is None:
        pipeline = part.get('pipeline')
        inner = part.get('datasets') or [part.get('dataset')]
        part = inner[0]
    steps = [
        step for step in pipeline or []
        if isinstance(step, dict) and 'Load' in str(step.get('type'))
    ]
    return steps or [dict(type='LoadImageFromFile')]


def _empty_pipelines(part: Any) -> None:
    if isinstance(part, dict):
        if 'pipeline' in part:
            part['pipeline'] = []
        part = list(part.values())
    if isinstance(part, (list, tuple)):
        for value in part:
            _empty_pipelines(value)


def _folders_of(dataset: Any) -> Set[str]:
    """The folders that a data set names, without symbolic links."""
    parts = getattr(dataset, 'datasets', None)
    if parts is None and hasattr(dataset, 'dataset'):
        parts = [dataset.dataset]
    if parts is not None:
        return set().union(*map(_folders_of, parts))
    folders = [getattr(dataset, 'data_root', None)]
    prefixes = getattr(dataset, 'data_prefix', None) or {}
    folders += [
        prefix for prefix in prefixes.values() if isinstance(prefix, str)
    ]
    return {osp.realpath(folder) for folder in folders if folder}


def open_predictor(config: dict, weights: dict, trust: bool,
                   device: str) -> Any:
    """What predicts the images of a training.

    Args:
        config (dict): Config of the training.
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        trust (bool): Whether the config may build anything.
        device (str): Where it runs.

    Returns:
        Predictor or ClassPredictor: It takes an image.

    Raises:
        ConfigError: If the model can't be built. The text goes on after
            "because".
    """
    predictors = dict(mmseg=Predictor, mmpretrain=ClassPredictor)
    scope = scope_of(config)
    if scope not in predictors:
        raise ConfigError('predictions are made of models of MMSegmentation '
                          'and of classifiers of MMPretrain alone')
    return predictors[scope](config, weights, trust, device)


class Predictor:
    """The segmentor of a checkpoint, on whole images.

    Args:
        config (dict): Config of the training.
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        trust (bool): Whether the config may build anything.
        device (str): Where it runs.

    Raises:
        ConfigError: If the model can't be built. The text goes on after
            "because".
    """

    def __init__(self, config: dict, weights: dict, trust: bool,
                 device: str) -> None:
        from mmseg.apis import init_model
        pipeline = config.get('test_pipeline') or _test_pipeline_of(config)
        cfg = Config(
            dict(
                model=buildable(config, config.get('model'), trust),
                test_pipeline=buildable(config, pipeline, trust),
                default_scope='mmseg'))
        cfg.model.setdefault('backbone', dict())
        try:
            self._model = init_model(cfg, device='cpu')
        # What a model may raise isn't known.
        except Exception as error:
            raise ConfigError(_short(error)) from error
        _load(self._model, weights, device)

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """Predict an image.

        Args:
            image (np.ndarray): BGR, uint8 of shape (H, W, 3).

        Returns:
            np.ndarray: Label of each pixel, of shape (H, W).

        Raises:
            ConfigError: If it can't be predicted.
        """
        return self._predict(image).pred_sem_seg.data[0].cpu().numpy()

    def losses(self, image: np.ndarray, labels: np.ndarray) -> ImageLosses:
        """How little labels are like what is predicted.

        Args:
            image (np.ndarray): BGR, uint8 of shape (H, W, 3).
            labels (np.ndarray): Label of each pixel, integers of shape
                (H, W).

        Returns:
            ImageLosses: What :func:`image_losses` returns.

        Raises:
            ConfigError: If it can't be predicted.
        """
        logits = self._predict(image).seg_logits.data
        if labels.shape != logits.shape[1:]:
            raise ConfigError(f'labels of {labels.shape} pixels don\'t fit a '
                              f'prediction of {tuple(logits.shape[1:])}')
        if len(logits) == 1:
            # Of a binary model mmseg gives the probability.
            logits = torch.cat([1 - logits, logits]).clamp(1e-7).log()
        labels = torch.from_numpy(labels.astype(np.int64)).to(logits.device)
        return image_losses(logits, labels)

    def _predict(self, image: np.ndarray) -> Any:
        from mmseg.apis import inference_model
        try:
            return inference_model(self._model, image)
        except Exception as error:
            raise ConfigError(_short(error)) from error


class ClassPredictor:
    """The classifier of a checkpoint.

    Args:
        config (dict): Config of the training.
        weights (dict[str, Tensor]): Parameters and buffers of the model.
        trust (bool): Whether the config may build anything.
        device (str): Where it runs.

    Raises:
        ConfigError: If the model can't be built.
    """

    def __init__(self, config: dict, weights: dict, trust: bool,
                 device: str) -> None:
        from mmpretrain.registry import MODELS
        part = config.get('model') or {}
        if part.get('type') not in ('ImageClassifier',
                                    'mmpretrain.ImageClassifier'):
            raise ConfigError(f'{part.get("type")} doesn\'t tell classes')
        model = buildable(config, part, trust)
        if model.get('data_preprocessor') is None:
            model.data_preprocessor = buildable(
                config, dict(config.get('data_preprocessor') or {}), trust)
        pipeline = _test_pipeline_of(config) or [dict(type='PackInputs')]
        steps = buildable(config, pipeline, trust)
        try:
            with DefaultScope.overwrite_default_scope('mmpretrain'):
                self._steps = [
                    TRANSFORMS.build(step) for step in steps
                    if 'LoadImage' not in str(step.get('type'))
                ]
                self._model = MODELS.build(model).eval()
        # What a model may raise isn't known.
        except Exception as error:
            raise ConfigError(_short(error)) from error
        _load(self._model, weights, device)

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> Any:
        """Predict an image.

        Args:
            image (np.ndarray): As the data set has it, uint8.

        Returns:
            Tensor: Numbers of the classes, one or several.

        Raises:
            ConfigError: If it can't be predicted.
        """
        results: dict = dict(
            img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2])
        try:
            for step in self._steps:
                results = step(results)
            batch = dict(
                inputs=results['inputs'][None],
                data_samples=[results['data_samples']])
            return self._model.test_step(batch)[0].pred_label.cpu()
        except Exception as error:
            raise ConfigError(_short(error)) from error


def _test_pipeline_of(config: dict) -> Any:
    """The pipeline of the images that are tested on, None without one."""
    loader = config.get('test_dataloader') or config.get(
        'val_dataloader') or {}
    return (loader.get('dataset') or {}).get('pipeline')


def _load(model: nn.Module, weights: dict, device: str) -> None:
    """Give a model the weights of a checkpoint.

    Raises:
        ConfigError: If they aren't those of the model.
    """
    try:
        # Those of losses, which may be wrapped, don't matter.
        missing = model.load_state_dict(weights, strict=False).missing_keys
        model.to(device)
    except Exception as error:
        raise ConfigError(_short(error)) from error
    if missing:
        raise ConfigError(f'the checkpoint lacks `{missing[0]}`')


def image_losses(logits: Tensor, labels: Tensor) -> ImageLosses:
    """Compare the labels of an image with the predictions.

    Args:
        logits (Tensor): Those of the classes, of shape (C, H, W).
        labels (Tensor): The labels, int64 of shape (H, W). What is no class is
            ignored.
    """
    labelled = (labels >= 0) & (labels < len(logits))
    labels = labels[labelled]
    losses = F.cross_entropy(
        logits[:, labelled].T.float(), labels, reduction='none')
    highest = losses.topk(math.ceil(TOP_PIXELS * len(losses))).values
    sums = torch.bincount(labels, losses, len(logits))
    counts = torch.bincount(labels, minlength=len(logits))
    return ImageLosses(highest.mean().item(),
                       sums.cpu().numpy(),
                       counts.cpu().numpy())


def losses_of_images(
        reader: TrainingImages, predict: Predictor, num_images: int
) -> Tuple[Dict[str, np.ndarray], str, Tuple[float, float]]:
    """Predict all images, and compare that with their labels.

    Args:
        reader (TrainingImages): Reads them.
        predict (Predictor): Predicts them.
        num_images (int): How many there are.

    Returns:
        tuple[dict[str, np.ndarray], str, tuple[float, float]]: Losses by the
        name of a ranking, float64 of shape (N,), NaN of images where it fails;
        why it fails, of the last of them; and what :func:`mean_and_guess`
        returns.
    """
    losses = np.full(num_images, np.nan)
    reason = ''
    sums = counts = np.zeros(1)
    for number in track_iter_progress(range(num_images)):
        try:
            results = reader.read(number)
            if results.get('gt_seg_map') is None:
                raise ConfigError('the pipeline loads no labels')
            found = predict.losses(results['img'], results['gt_seg_map'])
        except ConfigError as error:
            reason = str(error)
            continue
        losses[number] = found.pixels
        sums, counts = sums + found.sums, counts + found.counts
    return dict(pixels=losses), reason, mean_and_guess(sums, counts)


def mean_and_guess(sums: np.ndarray,
                   counts: np.ndarray) -> Tuple[float, float]:
    """What a network has learned of the labels.

    Args:
        sums (np.ndarray): Sum of the pixel losses of each class, of shape
            (C,).
        counts (np.ndarray): Labelled pixels of each class, of shape (C,).

    Returns:
        tuple[float, float]: Mean pixel loss; and that of guessing each pixel
        by how frequent the classes are.
    """
    total = max(counts.sum(), 1)
    shares = counts[counts > 0] / total
    return float(sums.sum() / total), float(-(shares * np.log(shares)).sum())


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines() or ['']
    return f'{type(error).__name__}: {lines[0][:200]}'
