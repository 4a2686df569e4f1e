# Copyright (c) mmib contributors. All rights reserved.
"""The forms that states in checkpoints must have, and their check.

A form is a :class:`Form`, a :class:`Maybe`, a dict of forms by key, a tuple of
forms, or a list ``[form, size]``. ``size`` names the length of the list, or is
None for any length. A state may have more keys than its form.
"""
import sys
from dataclasses import dataclass
from math import inf
from typing import Any, Callable, Dict, Optional

import numpy as np

from ..errors import ValueRefusal

Sizes = Dict[str, int]


@dataclass(frozen=True)
class Form:
    """The form of a single value.

    Args:
        says (str): What the value must be, for errors, with names of sizes in
            braces.
        fits (Callable): ``fits(value, sizes)`` tells whether the value has
            the form, and may add to the known sizes.
    """

    says: str
    fits: Callable[[Any, Sizes], bool]


@dataclass(frozen=True)
class Maybe:
    """A form, or the one value ``nothing``, None by default."""

    form: Any
    nothing: Any = None


TEXT = Form('a string', lambda value, _: isinstance(value, str))
FLAG = Form('True or False', lambda value, _: isinstance(value, bool))


def integer(low: int = 0,
            high: int = sys.maxsize,
            size: Optional[str] = None) -> Form:
    """An integer in ``[low, high]``. ``size`` names it for other forms."""

    def fits(value: Any, sizes: Sizes) -> bool:
        if (not isinstance(value, (int, np.integer))
                or isinstance(value, bool) or not low <= value <= high):
            return False
        return size is None or sizes.setdefault(size, int(value)) == value

    return Form(
        f'an integer of at least {low}'
        if high == sys.maxsize else f'an integer in [{low}, {high}]', fits)


def real(low: float = 0, finite: bool = True) -> Form:
    """A number, by default finite and at least ``low``."""

    def fits(value: Any, _: Sizes) -> bool:
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        return (is_number and not isinstance(value, bool)
                and (not finite or
                     (value >= low and abs(value) <= sys.float_info.max)))

    return Form(
        f'a {"finite " if finite else ""}number' +
        (f' of at least {low}' if low > -inf else ''), fits)


def array(dtypes: str,
          *shape: str,
          low: float = -inf,
          below: Optional[str] = None,
          nan: bool = False) -> Form:
    """An array without infinite numbers.

    Args:
        dtypes (str): Allowed types, with blanks between them.
        shape (str): A name for the size of each dimension.
        low (float): Least allowed number. Defaults to minus infinity.
        below (str, optional): Name of the size below which all numbers lie.
            Defaults to None.
        nan (bool): Whether numbers may be NaN. Defaults to False.
    """

    def fits(value: Any, sizes: Sizes) -> bool:
        if (not isinstance(value, np.ndarray)
                or value.dtype.name not in dtypes.split()
                or value.ndim != len(shape)):
            return False
        for name, length in zip(shape, value.shape):
            if sizes.setdefault(name, length) != length:
                return False
        values = value[~np.isnan(value)] if nan else value
        return bool(
            np.isfinite(values).all() and (values >= low).all()
            and (below is None or (values < sizes[below]).all()))

    sizes = ', '.join(f'{{{name}}}' for name in shape)
    says = f'{" or ".join(dtypes.split())} of shape ({sizes})'
    says += f', at least {low}' if low > -inf else ''
    says += f', below {{{below}}}' if below else ''
    if 'float' in dtypes:
        says += ', not infinite' if nan else ', finite'
    return Form(says, fits)


def damaged(where: str, problem: str) -> ValueError:
    """The error for a checkpoint with a problem at some key."""
    return ValueRefusal(
        f'`{where}` in the checkpoint {problem}: resume from an earlier '
        'checkpoint, or delete the key `infobatch` from this one, and scores '
        'start at 1 again.')


def check_form(value: Any, form: Any, where: str, sizes: Sizes) -> None:
    """Check that a state has a form.

    Args:
        value (Any): Arrays and plain Python values.
        form (Any): The form.
        where (str): Keys until here, with dots between them.
        sizes (dict[str, int]): Sizes by name. Sizes of the value are added.

    Raises:
        ValueError: If the state has another form. The message names the key.
    """
    if isinstance(form, Maybe):
        if type(value) is not type(form.nothing) or value != form.nothing:
            check_form(value, form.form, where, sizes)
    elif isinstance(form, dict):
        _expect(isinstance(value, dict), value, 'a dict', where)
        for key, part in form.items():
            if key not in value:
                raise damaged(where, f'lacks {key!r}')
            check_form(value[key], part, f'{where}.{key}', sizes)
    elif isinstance(form, (list, tuple)):
        _expect(isinstance(value, (list, tuple)), value, 'a list', where)
        length = len(value)
        if isinstance(form, list):
            part, size = form
            known = length if size is None else sizes.setdefault(size, length)
            form = (part, ) * known
        _expect(length == len(form), value, f'a list of {len(form)}', where)
        for i, part in enumerate(form):
            check_form(value[i], part, f'{where}[{i}]', sizes)
    else:
        fits = form.fits(value, sizes)
        _expect(fits, value, form.says.format_map(_Known(sizes)), where)


class _Known(Dict[str, int]):
    """Sizes by name. An unknown size is its name."""

    def __missing__(self, name: str) -> str:
        return name


def _expect(fits: bool, value: Any, says: str, where: str) -> None:
    if not fits:
        raise damaged(where, f'must be {says}, but is {_describe(value)}')


def _describe(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        text = repr(value)
        return text if len(text) < 60 else f'{text[:60]}…'
    text = f'{value.dtype} of shape {value.shape}'
    if value.size and value.dtype.kind in 'iuf':
        text += f', from {value.min()} to {value.max()}'
    return text
