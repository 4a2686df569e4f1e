#!/usr/bin/env bash
# Compiled steps that write to rows of one tensor can't share a backward pass.
#
# Version: torch 2.13.0, on Linux and a CPU, backend `aot_eager`.
#
# A step logs what it sees of a batch in a row of a preallocated tensor, in the
# forward pass and in a hook at the gradient. In eager mode the losses of two
# steps may be added before one backward pass. Compiled, the backward pass
# raises a RuntimeError ("modified by an inplace operation"): the compiled step
# saves its row for the hook, all rows of a tensor share one version counter,
# and the second step moves the counter. Rows that were detached share it too,
# although the compiler asks for them, because it refuses to write to views.
# With a tensor of its own for each batch the compiled steps work.
#
# Output seen:
#
#     rows of one tensor, eager: works
#     rows of one tensor, compiled: RuntimeError
#     tensors of their own, eager: works
#     tensors of their own, compiled: works
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy
cat > "$folder/finding.py" <<'END'
import torch

net = torch.nn.Linear(4, 4)


def step(inputs, row):
    out = net(inputs)
    row.copy_(out.detach().sum(1))

    def note(gradient):
        row.copy_(gradient.sum(1) / row)

    out.register_hook(note)
    return out.sum()


def outcome(step, rows):
    try:
        loss = sum(step(torch.rand(2, 4), row) for row in rows)
        loss.backward()
    except RuntimeError as error:
        assert 'inplace operation' in str(error)
        return 'RuntimeError'
    return 'works'


found = []
for name, make in {
        'rows of one tensor':
        lambda: [row.detach() for row in torch.ones(2, 2)],
        'tensors of their own': lambda: [torch.ones(2), torch.ones(2)]
}.items():
    for kind in ('eager', 'compiled'):
        torch._dynamo.reset()
        own = step if kind == 'eager' else torch.compile(
            step, backend='aot_eager')
        found.append(outcome(own, make()))
        print(f'{name}, {kind}: {found[-1]}')
assert found == ['works', 'RuntimeError', 'works', 'works']
END
cd "$folder"
venv/bin/python finding.py
