# Copyright (c) mmib contributors. All rights reserved.
"""A file of all plans, beside the log, from which a report is made."""
import json
import os.path as osp
from typing import Any

from mmengine.dist import is_main_process

FILE_NAME = 'infobatch.jsonl'
# In the message hub: the time at which the training began.
RUN_KEY = 'infobatch/run'


def write_line(log_dir: str, **line: Any) -> None:
    """Add a line of JSON to ``infobatch.jsonl``, on the first rank.

    There is a line when a training begins or goes on (``begins``), one for
    each virtual epoch that has a line in the log (a ``PlanRecord``), and one
    when the training ends (``ends``).
    """
    if is_main_process():
        path = osp.join(log_dir, FILE_NAME)
        with open(path, 'a', encoding='utf-8') as file:
            file.write(json.dumps(line) + '\n')
