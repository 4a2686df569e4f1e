#!/usr/bin/env bash
# A compiled step can't slice a range, unless its bounds never change.
#
# Version: torch 2.13.0, on Linux and a CPU, backend `eager`.
#
# An object that travels with a batch keeps the numbers of its samples as a
# `range`, and a compiled step takes a part of them. The first call works. At
# the second one the bounds are others, so the compiler makes symbols of them,
# and slicing the range then raises an InternalTorchDynamoError
# ("SymNodeVariable() is not a constant"), and doesn't leave the graph, as it
# does where it doesn't know an operation. With a list in the place of the range
# all calls work.
#
# Output seen:
#
#     range: works, InternalTorchDynamoError
#     list: works, works
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy
cat > "$folder/finding.py" <<'END'
import torch
from torch._dynamo.exc import InternalTorchDynamoError


class Batch:

    def __init__(self, numbers):
        self.numbers = numbers


def step(inputs, batch):
    return inputs[:2].sum(), batch.numbers[:2]


found = {}
for kind in (range, list):
    torch._dynamo.reset()
    compiled = torch.compile(step, backend='eager')
    found[kind.__name__] = []
    for begin in (0, 4):
        numbers = range(begin, begin + 4)
        try:
            part = compiled(
                torch.ones(4),
                Batch(numbers if kind is range else list(numbers)))[1]
            assert list(part) == [begin, begin + 1]
            found[kind.__name__].append('works')
        except InternalTorchDynamoError as error:
            found[kind.__name__].append(type(error).__name__)
for name, outcomes in found.items():
    print(f'{name}: {", ".join(outcomes)}')
assert found == dict(
    range=['works', 'InternalTorchDynamoError'], list=['works', 'works'])
END
cd "$folder"
venv/bin/python finding.py
