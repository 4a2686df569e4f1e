# Copyright (c) mmib contributors. All rights reserved.
"""What mmib refuses: a mistake of the user, told from a fault of mmib."""


class Refusal(Exception):
    """A mistake of the user, with a text that says what to change.

    The command ``mmib`` shows this text alone. It shows any other exception
    with its traceback.
    """


class ValueRefusal(Refusal, ValueError):
    """A refused value."""


class TypeRefusal(Refusal, TypeError):
    """A refused type or argument."""


class RuntimeRefusal(Refusal, RuntimeError):
    """A refused training, or a refused step of a training."""


class KeyRefusal(Refusal, KeyError):
    """A name that isn't registered."""


class FileNotFoundRefusal(Refusal, FileNotFoundError):
    """A file that isn't there."""


class ModuleNotFoundRefusal(Refusal, ModuleNotFoundError):
    """A library that isn't installed."""
