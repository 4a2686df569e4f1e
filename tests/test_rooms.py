# Copyright (c) mmib contributors. All rights reserved.
"""Each room of mmib imports what lies below it alone, also within functions.
The core needs torch and numpy, and no more.
"""
import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# From top to bottom. Rooms on one line don't import each other. The package
# itself, `mmib/__init__.py`, stands outside: it imports what users need.
ROOMS = """
mmib_cli tools benchmarks tests
labels
report registry
openmmlab
integrations
session
loader
run
pruning worth
scores
stream
plans
stop
ranks errors version
""".strip().splitlines()
LEVELS = {room: i for i, line in enumerate(ROOMS) for room in line.split()}
OUTSIDE = '__init__', '__main__'
FILES = sorted(ROOT.glob('mmib/**/*.py'))
# Libraries that a room needs, besides Python's own. Else numpy and torch.
NEEDS = dict(
    worth={'numpy'},
    pruning={'numpy'},
    plans={'numpy'},
    errors=set(),
    version=set())


def imports_of(path):
    """Line and dotted name of all that a file imports."""
    package = path.relative_to(ROOT).with_suffix('').parts
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            parts = list(package[:-node.level] if node.level else ())
            parts += [node.module] if node.module else []
            for alias in node.names:
                yield node.lineno, '.'.join([*parts, alias.name])


def room_of(name):
    """The room that a dotted name lies in, None of another library. What is
    imported from the package itself has its own name."""
    first, _, rest = name.partition('.')
    if first != 'mmib':
        return first if first in LEVELS else None
    return rest.partition('.')[0]


def room_of_file(path):
    return path.relative_to(ROOT / 'mmib').with_suffix('').parts[0]


def test_arrows_go_down():
    wrong = []
    for path in FILES:
        room = room_of_file(path)
        if room in OUTSIDE:
            continue
        for line, name in imports_of(path):
            other = room_of(name)
            if other is not None and other != room and LEVELS.get(
                    other, -1) <= LEVELS.get(room, len(ROOMS)):
                wrong.append(f'{path.relative_to(ROOT)}:{line}: {room} '
                             f'imports {name}')
    assert not wrong, '\n'.join(wrong)


def test_no_circles_in_openmmlab():
    """Nor between the folders of the half of MMEngine."""
    levels = 'config', 'console', 'runner', 'data', 'tasks'
    for path in ROOT.glob('mmib/openmmlab/*/*.py'):
        own = levels.index(path.parent.name)
        for line, name in imports_of(path):
            if name.startswith('mmib.openmmlab.'):
                other = name.split('.')[2]
                assert other not in levels[:own], f'{path}:{line}: {name}'


def test_the_list_of_rooms_is_that_of_the_files():
    rooms = {*map(room_of_file, FILES)} - {*OUTSIDE}
    assert rooms == {*LEVELS} - {*ROOMS[0].split()}


CORE = [*ROOMS[ROOMS.index('session'):], '__init__']


@pytest.mark.parametrize('room', ' '.join(CORE).split())
def test_the_core_needs_no_other_library(room):
    """MMEngine and what needs it lie above. The package itself imports
    ``mmib.openmmlab`` where MMEngine is installed, by its name."""
    allowed = {*sys.stdlib_module_names, 'mmib'} | NEEDS.get(
        room, {'numpy', 'torch'})
    files = [path for path in FILES if room_of_file(path) == room]
    assert files
    for path in files:
        for line, name in imports_of(path):
            # That of `mmib/__init__.py` is for type checkers alone.
            assert name.partition('.')[0] in allowed, f'{path}:{line}'
            assert room_of(name) != 'openmmlab' or room == '__init__'


def test_plans_and_worth_need_numpy_alone():
    """Also by what they import of mmib."""
    for path in FILES:
        if room_of_file(path) in ('plans', 'pruning'):
            rooms = {room_of(name) for _, name in imports_of(path)}
            assert rooms <= {None, 'plans', 'errors'}, path
    names = [name for _, name in imports_of(ROOT / 'mmib/scores/worth.py')]
    assert not [name for name in names if name.startswith(('mmib', 'torch'))]


def test_iterations_live_in_the_half_of_mmengine():
    """The core counts slots alone. The reader of an older state knows of
    iterations, and one docstring says where they are."""
    found = set()
    for room in ('plans', 'stream', 'scores', 'run'):
        for path in ROOT.glob(f'mmib/{room}/*.py'):
            if 'iteration' in path.read_text('utf-8').lower():
                found.add(path.name)
    assert found == {'explain.py', 'states.py'}
