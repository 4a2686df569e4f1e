# Copyright (c) mmib contributors. All rights reserved.
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path('examples/wrong_masks/wrong_masks.ipynb')


def found_by(notebook):
    """How many of the wrong masks the notebook says that it has found."""
    text = notebook.cells[-2].outputs[0].text
    return [int(number) for number in re.findall(r'\d+', text)]


def test_wrong_masks(tmp_path):
    """The notebook finds most wrong masks, as it says where it is read."""
    notebook = nbformat.read(NOTEBOOK, 4)
    shown = found_by(notebook)
    NotebookClient(
        notebook,
        timeout=300,
        resources=dict(metadata=dict(path=str(tmp_path)))).execute()
    found = found_by(notebook)
    assert found[1:] == shown[1:] == [6, 9, 60]
    assert shown[0] >= 5 and found[0] >= 4
