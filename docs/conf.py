# Copyright (c) mmib contributors. All rights reserved.
"""Makes the site: ``make docs``. Links are those that work on GitHub too."""
import os.path as osp
import re
from functools import partial
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx

import mmib
from mmib_cli import parsers

project = 'mmib'
author = copyright = 'mmib contributors'
release = mmib.__version__

# The source is the whole repository, so that pages of docs/ may link to
# research/, examples/ and configs/, which are pages of the site too. Other
# files that a page links to are for download, and links to other folders are
# plain text.
ROOT = Path(__file__).resolve().parents[1]
root_doc = 'docs/index'
include_patterns = [
    'docs/**', 'research/**', 'examples/**', 'configs/**', 'benchmarks/**',
    '*.md', 'tests/system/families.md'
]
# README.md is a part of docs/index.md, and docs/README.md is for those who
# browse the folder.
exclude_patterns = ['README.md', 'docs/README.md', '.*', 'build']

extensions = [
    'myst_parser', 'sphinx.ext.autodoc', 'sphinx.ext.napoleon',
    'sphinx.ext.viewcode', 'sphinx_copybutton'
]
html_theme = 'furo'
html_static_path, html_css_files = ['site'], ['site.css']
html_title = f'mmib {release}'
# Lines of a diff in red and green.
pygments_style, pygments_dark_style = 'default', 'monokai'

# Links to headings, as GitHub makes them.
myst_heading_anchors = 4

# Docstrings give the types.
autodoc_typehints = 'none'
autodoc_member_order = 'bysource'
# In docstrings `this` is code, and -- stays as it is.
default_role = 'code'
smartquotes = False
highlight_language = 'none'


def resolve_links(app: Sphinx, doctree: nodes.document) -> None:
    """Lead links to a folder, or to README.md, to what the site has of it."""
    document = app.env.docname
    if not document.startswith('docs/'):
        # A page beside docs/ is reached by links.
        app.env.metadata[document]['orphan'] = True
    folder = (ROOT / document).parent
    for link in list(doctree.findall(pending_xref)):
        if link['reftype'] != 'myst':
            continue
        if link['refdomain'] == 'doc':
            path = ROOT / link['reftarget']
        else:
            path = folder / link['reftarget']
        path = Path(osp.normpath(path))
        page = None
        if path in (ROOT, ROOT / 'README', ROOT / 'docs' / 'README'):
            page = root_doc
        elif (path / 'README.md').exists():
            page = str(path.relative_to(ROOT) / 'README')
        elif path.is_dir():
            # The site has no page of it.
            link.replace_self(link.children)
        if page is not None:
            link['refdomain'], link['reftarget'] = 'doc', page
            link.setdefault('reftargetid', None)


class CommandHelp(Directive):
    """The help of a command of mmib, as a terminal shows it."""

    required_arguments = 1

    def run(self) -> list:
        parser = getattr(parsers, self.arguments[0])()
        parser.formatter_class = partial(parser.formatter_class, width=88)
        text = parser.format_help()
        return [nodes.literal_block(text, text, language='none')]


def keep_intervals(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Let no line of a table break within an interval, such as [-1, 1]."""
    for text in list(doctree.findall(nodes.Text)):
        parent = text.parent
        while parent is not None and not isinstance(parent, nodes.entry):
            parent = parent.parent
        if parent is not None:
            kept = re.sub(r'\[[-+\d][^\]]*\]',
                          lambda found: found[0].replace(' ', '\xa0'), text)
            text.parent.replace(text, nodes.Text(kept))


def include_readme(app: Sphinx, path: str, parent: str, text: list) -> None:
    """Let the links of README.md begin in docs/."""
    text[0] = re.sub(r'\]\((?!https?:|#)', '](../', text[0])


def add_front(app: Sphinx, error: Exception) -> None:
    """The address of the site is that of its first page."""
    if error is None and app.builder.name == 'html':
        page = app.builder.get_target_uri(root_doc)
        (Path(app.outdir) / 'index.html'
         ).write_text(f'<meta http-equiv="refresh" content="0; url={page}">\n')


def setup(app: Sphinx) -> None:
    # Before files for download are collected.
    app.connect('doctree-read', resolve_links, priority=400)
    app.connect('doctree-resolved', keep_intervals)
    app.add_directive('command-help', CommandHelp)
    app.connect('include-read', include_readme)
    app.connect('build-finished', add_front)
