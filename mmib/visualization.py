# Copyright (c) mmib contributors. All rights reserved.
"""Pictures of the scores for TensorBoard, WandB and the like."""
from typing import Any, Optional

import numpy as np
from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner

from .checks import check_no_others
from .hook import InfoBatchHook


@HOOKS.register_module()
class InfoBatchVisualizationHook(Hook):
    """Show the scores at each validation, in every backend of the visualizer.

    ``infobatch_scores`` is a histogram of all scores, of those that the plan
    keeps, and these by weight. ``infobatch_highest`` has the images with the
    highest scores, which are often hard ones or label errors, each with its
    labels. It reads the scores and some images back, so it is a hook of its
    own that is off by default.

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

    def before_train(self, runner: Runner) -> None:
        """Find the scores."""
        hooks = [h for h in runner.hooks if isinstance(h, InfoBatchHook)]
        if not hooks:
            raise RuntimeError(
                'InfoBatchVisualizationHook shows the scores of InfoBatchHook,'
                ' which `custom_hooks` lacks: add it, or remove this one.')
        try:
            from .report.images import TrainingImages
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f'InfoBatchVisualizationHook needs {error.name}: run `pip '
                "install 'mmib[report]'`, or remove it from `custom_hooks`."
            ) from error
        self._infobatch = hooks[0]
        self._images = TrainingImages(
            runner.cfg.to_dict(), hooks[0].scores.num_images, trust=True)

    @master_only
    def before_val_epoch(self, runner: Runner) -> None:
        """Add the pictures."""
        if self._infobatch is None:  # A validation alone.
            return
        from .report import figures, gallery
        from .report.config import ConfigError
        histogram = self._infobatch.planner.epoch.histogram
        if histogram is not None:
            runner.visualizer.add_image(
                'infobatch_scores',
                figures.to_array(figures.histogram(histogram), figures.WIDE),
                runner.iter)
        scores = self._infobatch.scores.by_image()
        highest = np.argsort(-scores, kind='stable')[:self.num_images]
        try:
            rows = [
                gallery.row(
                    self._images.read(int(number)), self._images.palette)
                for number in highest
            ]
        except ConfigError as error:
            runner.logger.warning(
                f'The images with the highest scores can\'t be shown: {error}.'
            )
            return
        if rows:
            runner.visualizer.add_image('infobatch_highest',
                                        gallery.stack(rows), runner.iter)
