# Copyright (c) mmib contributors. All rights reserved.
"""The code of docs/own_loop.md runs as it stands."""
import pytest

import mmib
from tests.helpers.pages import code_of, names

CODE = [
    *code_of('own_loop.md', '## Change your loop'),
    *code_of('own_loop.md', '## Do more')
]


@pytest.mark.parametrize('code', CODE)
def test_own_loop(code):
    given = dict(names(), mmib=mmib)
    exec(code, given)
    assert given['session'].progress == 1


def test_all_code_of_the_page_was_found():
    assert len(CODE) == 2
