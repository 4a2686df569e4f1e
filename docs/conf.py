# Copyright (c) mmib contributors. All rights reserved.
"""Makes the site: ``make docs``. Links are those that work on GitHub too."""
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import mmib

project = 'mmib'
author = 'mmib contributors'
release = mmib.__version__

extensions = ['myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon']
html_theme = 'furo'
html_title = f'mmib {release}'

# Links to headings, as GitHub makes them.
myst_heading_anchors = 4

# Docstrings give the types.
autodoc_typehints = 'none'
autodoc_member_order = 'bysource'

ROOT = Path(__file__).resolve().parents[1]
PAGES = {ROOT / 'README': 'index', ROOT / 'CHANGELOG': 'changes'}


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Find what lies beside ``docs/``: two files are pages of the site, and a
    folder is named without a link. (Other files are for download.)"""
    for link in list(doctree.findall(pending_xref)):
        if link['reftype'] != 'myst':
            continue
        # README and the change log are read in place of pages in `docs/`.
        for folder in (ROOT, ROOT / 'docs'):
            path = (folder / link['reftarget']).resolve()
            page = PAGES.get(path.with_suffix(''))
            if page is not None:
                link['refdomain'], link['reftarget'] = 'doc', page
                link['reftargetid'] = None
                break
            if path.exists():
                link.replace_self(link.children)
                break


def setup(app: Sphinx) -> None:
    app.connect('doctree-read', resolve_links)
