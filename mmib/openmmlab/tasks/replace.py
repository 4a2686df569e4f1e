# Copyright (c) mmib contributors. All rights reserved.
"""How tasks reach into the heads and models of a library."""
import functools
from typing import Any, Callable


def replace_method(owner: Any, name: str, call: Callable) -> None:
    """Let ``call(method, *args, **kwargs)`` take the place of a method, and of
    an earlier replacement.

    Which rows of a loss belong to which image is known in ``get_targets`` of
    mmseg's mask heads, which matches masks, and in ``loss`` of mmpretrain's
    heads, which leaves out images without a label or selects masked tokens:
    until these heads tell their losses the rows. Each head of mmdet takes
    predictions apart in its own way, so predictions are changed where they
    come in: until mmdet's losses take a weight for each image. The loss of a
    batch is known in ``parse_losses`` of a model: until hooks get the loss
    before its backward pass.
    """
    method = getattr(owner, name)
    method = getattr(method, 'unchanged', method)

    @functools.wraps(method)
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return call(method, *args, **kwargs)

    setattr(replaced, 'unchanged', method)
    setattr(owner, name, replaced)
