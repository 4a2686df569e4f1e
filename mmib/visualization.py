# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the scores for TensorBoard, WandB and the like."""
from typing import Any, Optional

import numpy as np
from mmengine.dist import is_main_process, master_only
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from . import compat
from .config.checks import check_no_others
from .hook import InfoBatchHook


@HOOKS.register_module()
class InfoBatchVisualizationHook(Hook):
    """Show the scores at each validation, in every backend of the visualizer.

    ``infobatch_scores`` is a histogram of all scores, of those that the plan
    keeps, and these by weight. ``infobatch_highest`` has the images whose
    scores are the highest on average, which are often hard ones or label
    errors, each with its labels. TensorBoard and WandB also get a histogram of
    their own, ``infobatch/scores``. The hook reads the scores and some images
    back, so it is one of its own that is off by default.

    Args:
        num_images (int): Images to show. Defaults to 6.

    Raises:
        ValueError: If ``num_images`` is negative.
        RuntimeError: If the training has no ``InfoBatchHook``, or a library
            is missing.

    Examples:
        >>> custom_hooks = [
        >>>     dict(type='InfoBatchHook'),
        >>>     dict(type='InfoBatchVisualizationHook')
        >>> ]
        >>> vis_backends = [dict(type='TensorboardVisBackend')]
    """

    # InfoBatchHook makes the scores before.
    priority = 'LOW'

    def __init__(self, num_images: int = 6, **unknown: Any) -> None:
        check_no_others(unknown, InfoBatchVisualizationHook, '`custom_hooks`')
        if num_images < 0:
            raise ValueError('`num_images` of InfoBatchVisualizationHook in '
                             f'`custom_hooks` is {num_images}: give 0 or more')
        self.num_images = num_images
        self._infobatch: Optional[InfoBatchHook] = None
        self._images: Any = None
        self._figures: Any = None
        self._gallery: Any = None

    def before_train(self, runner: Runner) -> None:
        """Find the scores."""
        hooks = [h for h in runner.hooks if isinstance(h, InfoBatchHook)]
        if not hooks or hooks[0].scores is None:
            raise RuntimeError(
                'InfoBatchVisualizationHook shows the scores of InfoBatchHook,'
                ' which `custom_hooks` lacks before it: add it, or remove this'
                ' one.')
        try:
            from .report import figures, gallery, images
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f'InfoBatchVisualizationHook needs {error.name}: run `pip '
                "install 'mmib[report]'`, or remove it from `custom_hooks`."
            ) from error
        self._infobatch = hooks[0]
        self._figures, self._gallery = figures, gallery
        if is_main_process() and self.num_images:
            try:
                self._images = images.TrainingImages(
                    runner.cfg.to_dict(),
                    hooks[0].scores.num_images,
                    trust=True)
            except Exception as error:
                self._warn(runner, error)

    @master_only
    def before_val_epoch(self, runner: Runner) -> None:
        """Add the pictures."""
        if self._infobatch is None or self._infobatch.planner.epoch is None:
            return  # A validation alone, or before the first step.
        scores = self._infobatch.scores
        # Images that a list leaves out have none.
        by_image = scores.by_image()
        compat.add_histogram(runner.visualizer, 'infobatch/scores',
                             by_image[~np.isnan(by_image)], runner.iter)
        histogram = self._infobatch.planner.epoch.histogram
        if histogram is not None:
            figures = self._figures
            runner.visualizer.add_image(
                'infobatch_scores',
                figures.to_array(figures.histogram(histogram), figures.WIDE),
                runner.iter)
        if self._images is None:
            return
        num_listed = np.count_nonzero(~np.isnan(by_image))
        highest = np.argsort(
            -scores.averages(),
            kind='stable')[:min(self.num_images, num_listed)]
        # What reading an image may raise isn't known, and isn't worth a
        # training.
        try:
            rows = [
                self._gallery.row(
                    self._images.read(int(number)), self._images.palette)
                for number in highest
            ]
        except Exception as error:
            self._warn(runner, error)
            self._images = None
            return
        runner.visualizer.add_image('infobatch_highest',
                                    self._gallery.stack(rows), runner.iter)

    @staticmethod
    def _warn(runner: Runner, error: Exception) -> None:
        runner.logger.warning('InfoBatchVisualizationHook can\'t show the '
                              f'images with the highest scores: {error}.')
