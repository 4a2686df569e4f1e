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


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Find what lies beside ``docs/``: README is the first page of the site,
    other pages and folders are named without a link. (Other files are for
    download.)"""
    for link in list(doctree.findall(pending_xref)):
        if link['reftype'] not in ('myst', 'doc'):
            continue
        # README is read in place of a page in `docs/`.
        for folder in (ROOT, ROOT / 'docs'):
            path = (folder / link['reftarget']).resolve()
            if path.with_suffix('') == ROOT / 'README':
                link['refdomain'], link['reftarget'] = 'doc', 'index'
                link['reftargetid'] = None
                break
            page = path.with_suffix('.md')
            outside = page.exists() and ROOT / 'docs' not in page.parents
            if outside or path.exists():
                link.replace_self(link.children)
                break


def setup(app: Sphinx) -> None:
    app.connect('doctree-read', resolve_links)
