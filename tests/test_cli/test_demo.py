# Copyright (c) mmib contributors. All rights reserved.
"""The demo, which `make demo` runs as a whole."""
import cv2

from mmib.report.read import read_run
from mmib_cli.demo import draw, summarize
from tests.helpers.work_dirs import write_finished


def test_data(tmp_path):
    draw(str(tmp_path))
    image = next(tmp_path.glob('images/training/*.jpg'))
    assert cv2.imread(str(image)).shape == (96, 96, 3)


def test_summary(tmp_path):
    text = summarize(read_run(str(write_finished(tmp_path))), 93.4)
    assert '40, where the baseline needs 50' in text
    assert 'for as many passes: 20% saved' in text
    assert 'of 12 images in each virtual epoch (pass): 0 3 3 3 0\n' in text
    assert 'mIoU         40.00\n' in text
    assert '1 min 33 s' in text
