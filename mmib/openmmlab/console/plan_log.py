# Copyright (c) mmib contributors. All rights reserved.
"""The file of a training from which a report is made, beside the log."""
import json
import os.path as osp
import time
from typing import Any

from mmengine.dist import is_main_process

FILE_NAME = 'infobatch.jsonl'
# In the message hub: the time at which the training began.
RUN_KEY = 'infobatch/run'


def write_line(log_dir: str, **line: Any) -> None:
    """Add a line of JSON to ``infobatch.jsonl``, on the first rank, with the
    time in seconds.

    There is a line when a training begins or goes on (``begins``), one for
    each virtual epoch that has a line in the log (a ``PlanRecord``), for the
    mean ``loss`` without weights of some iterations, for the ``metrics`` of a
    validation, and one when the training ends (``ends``).
    """
    if is_main_process():
        line['time'] = round(time.time(), 2)
        path = osp.join(log_dir, FILE_NAME)
        with open(path, 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')
