# Copyright (c) mmib contributors. All rights reserved.
"""Refusals: errors that the user can correct, with a text that says how."""
import difflib
import inspect


class Refusal(ValueError):
    """A mistake of the user, with a text that says what to change.

    The command ``mmib`` shows this text alone. The command shows any other
    exception with its traceback.
    """


def check_no_others(unknown: dict, owner: type, where: str) -> None:
    """Refuse arguments that a class of mmib doesn't take.

    Args:
        unknown (dict): The arguments that aren't parameters of the class.
        owner (type): The class.
        where (str): Place of the class in a config.
    """
    if not unknown:
        return
    name = next(iter(unknown))
    # The data loader gives the sampler its dataset.
    known = [
        parameter for parameter in inspect.signature(owner).parameters
        if parameter not in ('dataset', 'unknown')
    ]
    close = difflib.get_close_matches(name, known, 1)
    hint = f'did you mean `{close[0]}`?' if close else 'remove it.'
    raise Refusal(
        f'`{name}` in {where} is not an argument of {owner.__name__}, which '
        f'has {", ".join(known)}: {hint}')


def damaged(where: str, problem: str) -> Refusal:
    """Return the refusal of a state that has a problem at some key."""
    return Refusal(
        f'The state of InfoBatch in the checkpoint is damaged: `{where}` '
        f'{problem}. Resume from an earlier checkpoint, or without this '
        'state; then all scores start at 1 again.')
