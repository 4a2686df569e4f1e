# Copyright (c) mmib contributors. All rights reserved.
"""Each room of mmib imports what lies below it alone, also within functions.
"""
import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# From top to bottom. Rooms on one line don't import each other. The package
# itself, `mmib/__init__.py`, stands outside: it imports what users need.
ROOMS = """
mmib_cli tools benchmarks tests
labels
report
config
hook session
log
runner
training
planner
clock
sampler visits tasks
losses
batch
plan_record registry
data worth pruning
errors version
""".strip().splitlines()
LEVELS = {room: i for i, line in enumerate(ROOMS) for room in line.split()}
OUTSIDE = '__init__', '__main__'


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


def test_arrows_go_down():
    wrong = []
    for path in sorted(ROOT.glob('mmib/**/*.py')):
        room = path.relative_to(ROOT / 'mmib').with_suffix('').parts[0]
        if room in OUTSIDE:
            continue
        for line, name in imports_of(path):
            other = room_of(name)
            if other is not None and other != room and LEVELS.get(
                    other, -1) <= LEVELS.get(room, len(ROOMS)):
                wrong.append(f'{path.relative_to(ROOT)}:{line}: {room} '
                             f'imports {name}')
    assert not wrong, '\n'.join(wrong)
