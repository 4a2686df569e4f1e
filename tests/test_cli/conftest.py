# Copyright (c) mmib contributors. All rights reserved.
import sys
from collections import OrderedDict

import pytest
from mmengine.config import Config
from mmengine.visualization import Visualizer

from mmib_cli import main


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run a command, in this process and another folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('LOCAL_RANK', '0')
    # What commands replace, they may leave replaced.
    monkeypatch.setattr(Config, '_get_cfg_path', Config._get_cfg_path)
    # A visualizer that an earlier test has left would write to its own folder,
    # which may be gone.
    for visualizer in (Visualizer, *Visualizer.__subclasses__()):
        monkeypatch.setattr(visualizer, '_instance_dict', OrderedDict())
    monkeypatch.setattr(sys, 'argv', ['mmib'])
    monkeypatch.setattr(sys, 'path', [*sys.path])
    return lambda *arguments: main([str(each) for each in arguments])
