#!/usr/bin/env bash
# torchrun sends SIGTERM to the workers of a DataLoader too, and ends with 1.
#
# Version: torch 2.13.0, on Linux and a CPU.
#
# A script that wants to save at SIGTERM sets a handler for it. If torchrun gets
# the signal, it doesn't hand it on to the process of the script alone: it
# signals the process group of the script, in which the worker processes of a
# `DataLoader` are too. They end at once. The handler of the script returns, and
# the next batch raises a `RuntimeError` ("DataLoader worker ... exited
# unexpectedly") before a loop that acts after its step can save. A script that
# gets the signal directly goes on with its loader, and exits with its own code.
# Under torchrun the exit code is 1 whatever the script returns.
#
# Output seen:
#
#     python: exit code 75, the script said: saved
#     torchrun: exit code 1, the script said: RuntimeError
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q torch==2.13.0 numpy
cat > "$folder/finding.py" <<'END'
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):

    def __len__(self):
        return 10000

    def __getitem__(self, i):
        time.sleep(0.05)
        return torch.ones(1)


def script(folder):
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    said = 'end of the data'
    try:
        for i, batch in enumerate(DataLoader(Rows(), num_workers=2)):
            with open(f'{folder}/begun', 'w') as file:
                file.write('yes')
            # A loop that stops ten steps after the signal.
            if heard:
                heard.append(i)
            if len(heard) > 10:
                said = 'saved'
                break
    except RuntimeError:
        said = 'RuntimeError'
    with open(f'{folder}/said', 'w') as file:
        file.write(said)
    sys.exit(75)


def run(*command):
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([*command, __file__, folder],
                                   stderr=subprocess.DEVNULL)
        while not os.path.exists(f'{folder}/begun'):
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        with open(f'{folder}/said') as file:
            return code, file.read()


if __name__ == '__main__':
    if len(sys.argv) > 1:
        script(sys.argv[1])
    alone = run(sys.executable)
    print('python: exit code {}, the script said: {}'.format(*alone))
    under = run(sys.executable, '-m', 'torch.distributed.run', '--standalone',
                '--nproc-per-node', '1')
    print('torchrun: exit code {}, the script said: {}'.format(*under))
    assert alone == (75, 'saved')
    assert under == (1, 'RuntimeError')
END
cd "$folder"
venv/bin/python finding.py
