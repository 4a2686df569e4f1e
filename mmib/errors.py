# Copyright (c) mmib contributors. All rights reserved.
"""What mmib refuses: a mistake of the user, told from a fault of mmib."""
import difflib
import inspect


class Refusal(ValueError):
    """A mistake of the user, with a text that says what to change.

    The command ``mmib`` shows this text alone. It shows any other exception
    with its traceback.
    """


def check_no_others(unknown: dict, owner: type, where: str) -> None:
    """Refuse arguments that were given besides those of a class of mmib, which
    takes them as ``unknown``. ``where`` names its place in a config."""
    if not unknown:
        return
    name = next(iter(unknown))
    # The data loader gives the sampler its data set.
    known = [
        parameter for parameter in inspect.signature(owner).parameters
        if parameter not in ('dataset', 'unknown')
    ]
    close = difflib.get_close_matches(name, known, 1)
    hint = f'did you mean `{close[0]}`?' if close else 'remove it.'
    raise Refusal(f'`{name}` in {where} is no argument of '
                  f'{owner.__name__}, which '
                  f'has {", ".join(known)}: {hint}')


def damaged(where: str, problem: str) -> Refusal:
    """The error for a checkpoint with a problem at some key."""
    return Refusal(
        f'`{where}` in the checkpoint {problem}: resume from an earlier '
        'checkpoint, or delete the key `infobatch` from this one, and scores '
        'start at 1 again.')
