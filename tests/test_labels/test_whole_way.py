# Copyright (c) mmib contributors. All rights reserved.
"""From a checkpoint to a training on repaired masks, through a real browser
and a real Label Studio."""
import json
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from tests.helpers.segmentors import BASELINE
from tests.helpers.work_dirs import files_config

from ..test_cli.conftest import run  # noqa: F401
from ..test_cli.test_rank import write_scenes
from . import test_page
from .label_studio import Server
from .test_page import said, save
from .test_repair import MASKS, READ, assert_read, raw, region

browser = test_page.browser
WRONG = ('3.png', '11.png', '20.png')
CLASSES = ('sky', 'ground', 'disc', 'square', 'triangle')


@pytest.fixture
def trained(run):  # noqa: F811
    """Config and checkpoint of a baseline on 36 images, of which 3 have a
    wrong region, and the right masks of these."""
    write_scenes(Path('data'), 36)
    right = {}
    for name in WRONG:
        right[name] = raw(name)
        mask = right[name].copy()
        mask[16:64, 32:80] = mask[16:64, 32:80] % 5 + 1
        cv2.imwrite(f'{MASKS}/{name}', mask)
    cfg = files_config('data', 'unused', **BASELINE)
    for key in ('work_dir', 'experiment_name'):
        cfg.pop(key)
    cfg.train_dataloader.dataset.metainfo = dict(classes=CLASSES)
    cfg.train_dataloader.dataset.pipeline.pop(2)  # No crops.
    cfg.train_cfg.max_iters = 200
    cfg.custom_hooks = [dict(type='KeepMasks')]
    cfg.dump('files.py')
    cfg = Config.fromfile('files.py')
    cfg.work_dir = 'plain'
    Runner.from_cfg(cfg).train()
    return 'files.py', 'plain/iter_200.pth', right


@pytest.fixture
def label_studio(tmp_path):
    """Starts Label Studio on a folder of images."""
    program = os.environ.get('LABEL_STUDIO') or shutil.which('label-studio')
    if program is None:
        pytest.skip('no label-studio: LABEL_STUDIO names the program')
    pytest.importorskip('label_studio_sdk')
    servers = []

    def start(images):
        folder = tmp_path / 'label-studio'
        folder.mkdir()
        servers.append(Server(program, folder, images.resolve()))
        servers[0].wait()
        return servers[0]

    yield start
    for server in servers:
        server.process.terminate()
        server.process.wait(60)


def judge(browser, page, wrong):
    """Judge the first 30 images of a page, and save what was judged."""
    browser.open(page)
    browser.run('localStorage.clear()')
    browser.open(page)
    names = browser.run(
        '[...document.querySelectorAll(".card")].slice(0, 30)'
        '.map(card => JSON.parse(card.dataset.row)[0].split("/").pop())')
    browser.press('1')  # Leads to the first card.
    browser.press(*('1' if name in wrong else '2' for name in names))
    assert said(browser) == '30 of 30 looked at, 3 wrong'
    assert not browser.errors
    shutil.move(save(browser), 'review.csv')


def repair_masks(server, folder, right):
    """Import the folder into Label Studio, give each task its right mask, and
    export."""
    project = server.json(
        'POST', '/api/projects',
        dict(
            title='masks',
            label_config=(folder / 'label_config.xml').read_text()))['id']
    server.json('POST', '/api/storages/localfiles',
                dict(project=project, path=str(folder.resolve() / 'images')))
    answer = server.json('POST', f'/api/projects/{project}/import',
                         json.loads((folder / 'tasks.json').read_text()))
    assert answer['task_count'] == answer['annotation_count'] == 3
    found = server.json('GET', f'/api/tasks?project={project}&fields=all')
    for task in found['tasks']:
        name = task['data']['mask']
        image = server.ask('GET', task['data']['image'])
        assert image == (folder / 'images' / name).read_bytes()
        annotation, = server.json('GET',
                                  f'/api/tasks/{task["id"]}/annotations/')
        regions = [
            region(class_name, right[name] == label)
            for label, class_name in enumerate(CLASSES, 1)
        ]
        server.json('PATCH', f'/api/annotations/{annotation["id"]}/',
                    dict(result=regions))
    (folder / 'project-1.json').write_bytes(
        server.ask('GET', f'/api/projects/{project}/export?exportType=JSON'))


@pytest.mark.label_studio
def test_from_a_checkpoint_to_repaired_masks(trained, browser, label_studio,
                                             run):  # noqa: F811
    config, checkpoint, right = trained
    before = {path.name: path.read_bytes() for path in Path(MASKS).iterdir()}
    run('rank', config, checkpoint, '--images', 30, '--out', 'ranked')
    table = pd.read_csv('ranked/rank_train_images.csv')
    first = table.path.iloc[:3]
    wrong = [name.replace('png', 'jpg') for name in WRONG]
    assert sorted(first.str.split('/').str[-1]) == sorted(wrong)
    browser.errors.clear()
    judge(browser, 'ranked/rank_train.html', wrong)
    run('review', 'review.csv', '--export', 'out', '--config', config)
    assert sorted(os.listdir('out/masks')) == sorted(WRONG)
    repair_masks(label_studio(Path('out')), Path('out'), right)
    READ.clear()
    run('train', config, '--repaired', 'out', '--cfg-options',
        'train_cfg.max_iters=20')
    assert_read(right)
    assert not any(np.array_equal(raw(name), right[name]) for name in WRONG)
    assert {
        path.name: path.read_bytes()
        for path in Path(MASKS).iterdir()
    } == before
