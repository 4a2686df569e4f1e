# Copyright (c) mmib contributors. All rights reserved.
"""Write the states of version 3 in ``tests/data/version3``, and how mmib goes
on from each of them.

The states, and the steps after each state, are those of mmib at commit
b8f1bd1, with this file and ``test_version3.py`` added to the checkout, and
with one change: in a plan that prunes, the slots that are repeated for
other ranks are random ones, as today. In the root of the repository, this
command was run:

    PYTHONPATH=. OMP_NUM_THREADS=1 python tests/data/write_version3.py

Each run writes the same bytes. With an mmib that writes another version, this
script stops before it writes anything.
"""
import functools
import io
import json
import lzma
import tempfile
from pathlib import Path

import torch

from mmib.run.states import VERSION
from tests.helpers.processes import run_ranks
from tests.system import test_version3 as version3


def train(work_dir, checkpoint=None, **arguments):
    """Train, with a checkpoint after each iteration. Return the record of the
    steps.

    Args:
        work_dir (Path): The work folder.
        checkpoint (Path, optional): The checkpoint to resume from. Defaults to
            None.
        **arguments: Other arguments of :func:`version3.build`.
    """
    saving = dict(type='CheckpointHook', by_epoch=False, interval=1)
    runner = version3.build(
        work_dir, checkpoint=checkpoint, hooks=[saving], **arguments)
    return version3.train(runner)[0]


def reduced(path):
    """Return what a resume needs of a checkpoint. The rest has paths, times,
    and objects of numpy and MMEngine."""
    checkpoint = torch.load(path, weights_only=False)
    kept = 'epoch', 'iter', 'seed', 'dataset_meta'
    meta = {name: checkpoint['meta'][name] for name in kept}
    log = dict(log_scalars={}, runtime_info={}, resumed_keys={})
    return dict(checkpoint, meta=meta, message_hub=log)


def write(name, state, infobatch, num_plans=1, is_full=False):
    """Write a state in the middle of a plan.

    Args:
        name (str): Name of the state.
        state (dict): The state, or a checkpoint.
        infobatch (dict): The state of mmib in it.
        num_plans (int): Number of open plans. Defaults to 1.
        is_full (bool): Whether the plan in training keeps all images. Defaults
            to False.
    """
    plans, position = infobatch['plans'], infobatch['ledger']['position']
    first_slot, kept = plans[0]['first_slot'], plans[0]['kept']
    assert first_slot < position < first_slot + kept
    assert is_full == (kept == infobatch['schedule']['pass_length'])
    assert len(plans) == num_plans
    file = io.BytesIO()
    torch.save(state, file)
    path = version3.STATES / f'{name}.pth.xz'
    path.write_bytes(lzma.compress(file.getvalue()))


def write_checkpoints(folder):
    """Write the checkpoints of Runners.

    Args:
        folder (Path): A folder for other files.

    Returns:
        dict[str, dict]: The steps that followed each checkpoint in the
        training that wrote the checkpoint.
    """
    followed = {}

    def keep(name, saved, of=None, resumed=0, **kinds):
        """Write the checkpoint of an iteration, and return its schedule.

        Args:
            name (str): Name of the checkpoint.
            saved (int): The iteration.
            of (str, optional): The training that this one goes on from.
                Defaults to None.
            resumed (int): The iteration to go on from. Defaults to 0.
            **kinds: Other arguments of :func:`write`.
        """
        before = folder / of / f'iter_{resumed}.pth' if of else None
        steps = train(folder / name, before, **version3.RUNNERS[name])
        followed[name] = {
            column: values[saved - resumed:]
            for column, values in steps.items()
        }
        checkpoint = reduced(folder / name / f'iter_{saved}.pth')
        assert 'checksum' in checkpoint['infobatch']
        write(name, checkpoint, checkpoint['infobatch'], **kinds)
        return checkpoint['infobatch']['schedule']

    keep('iterations', 14)
    keep('iterations_lookahead', 16, num_plans=4)
    keep('iterations_resumed', 19, 'iterations', 12)
    # A checkpoint of other images: all scores begin at 1 again. Only
    # `fresh_from` tells that the pass after the open one is full, too.
    train(folder / 'other', size=11)
    schedule = keep('iterations_afresh', 12, 'other', 10, is_full=True)
    assert schedule['fresh_from'] == 40
    keep('epochs', 13)
    keep('epochs_resumed', 14, 'epochs', 10)
    schedule = keep('epochs_afresh', 23, 'epochs', 14)
    assert schedule['fresh_from'] == 46 and schedule['unspent'] > 0
    return followed


def restored(state):
    """Return a state as a file has it."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def train_rank(rank, results, stop):
    """Train as one of two ranks until a number of steps, and return the state
    then."""
    loop = version3.Loop(**version3.SESSIONS['session_ranks'])
    loop.train(stop)
    results[rank] = restored(loop.state_dict())


def write_sessions():
    """Write the states of Sessions.

    Returns:
        dict[str, dict]: The steps that followed each state in the training
        that wrote the state.
    """
    sessions, followed = version3.SESSIONS, {}

    def keep(name, loop, stop, num_plans=1, **loader):
        loop.train(stop, **loader)
        state = restored(loop.state_dict())
        write(name, state, state['session'], num_plans)
        followed[name] = loop.train()

    keep('session_epochs', version3.Loop(**sessions['session_epochs']), 15)
    keep(
        'session_stream',
        version3.Loop(**sessions['session_stream']),
        10,
        num_plans=3,
        num_workers=1,
        prefetch_factor=4)
    arguments = sessions['session_resized']
    before = version3.Loop(**dict(arguments, batch_size=4))
    before.train(14)
    resized = version3.Loop(**arguments)
    resized.load_state_dict(restored(before.state_dict()))
    keep('session_resized', resized, 15)
    state, _ = run_ranks(functools.partial(train_rank, stop=10), 2)
    write('session_ranks', state, state['session'])
    return followed


def as_text(found):
    """Return what :func:`version3.go_on` found as JSON."""
    text = json.dumps(found, separators=(',', ':'), allow_nan=False)
    # Most weights are 1.0.
    return text.replace('.0,', ',').replace('.0]', ']')


def main():
    assert VERSION == 3
    version3.STATES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        followed = write_checkpoints(folder) | write_sessions()
        of_ranks = version3.by_ranks(version3.unpack(folder))
        for name in (*version3.RUNNERS, *version3.SESSIONS):
            found = {
                way: of_ranks[name] if way == 'two_ranks' else version3.go_on(
                    name, way, folder)
                for way in version3.ways(name)
            }
            # The run that wrote the state went on in the same way.
            for column, values in followed.get(name, {}).items():
                assert found['same'][column] == values != []
            lines = [f'"{way}":{as_text(found[way])}' for way in found]
            path = version3.STATES / f'{name}.json'
            path.write_text('{\n' + ',\n'.join(lines) + '\n}\n')


if __name__ == '__main__':
    main()
