# Copyright (c) mmib contributors. All rights reserved.
"""How tasks reach into the heads and models of a library."""
import functools
from typing import Any, Callable, Sequence, Tuple

from ..losses import InfoBatchLoss


def replace_method(owner: Any, name: str, call: Callable) -> None:
    """Let ``call(method, *args, **kwargs)`` take the place of a method, and of
    an earlier replacement.

    mmib replaces methods where the libraries have no hook. Each head of
    MMDetection takes its predictions apart in its own way, so gradients are
    weighed where predictions enter the head. This can go once the losses of
    MMDetection take a weight for each image. The total loss is known only in
    ``parse_losses`` of a model. This can go once hooks get the loss before its
    backward pass.
    """
    method = getattr(owner, name)
    method = getattr(method, 'unchanged', method)

    @functools.wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    setattr(replaced, 'unchanged', method)
    setattr(owner, name, replaced)


def follow_rows(owner: object, name: str, *rules:
                Tuple[Sequence[InfoBatchLoss], Callable]) -> None:
    """Set ``rows_per_image`` of some losses in each call of a method, in which
    it is known which rows of a loss belong to which image.

    The method is ``get_targets`` of MMSegmentation's mask heads, which matches
    masks, or ``loss`` of MMPretrain's heads, which leaves out images without a
    label or selects masked tokens. The function can go when these heads give
    their losses the rows.

    Args:
        owner (object): The head, or its part, with the method.
        name (str): Name of the method.
        *rules (tuple): Each some losses, and a function that returns their
            ``rows_per_image`` from the arguments of the method.
    """

    def call(method: Callable, *args: Any, **kwargs: Any) -> Any:
        for losses, rows_of in rules:
            rows_per_image = rows_of(*args, **kwargs)
            for loss in losses:
                loss.rows_per_image = rows_per_image
        return method(*args, **kwargs)

    replace_method(owner, name, call)
