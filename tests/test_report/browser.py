# Copyright (c) mmib contributors. All rights reserved.
"""The browser that opens pages, see ``tests/test_labels/devtools.py``."""
import shutil

CHROMIUM = shutil.which('chromium') or shutil.which('google-chrome')
OPTIONS = ('--headless', '--no-sandbox', '--disable-gpu', '--disable-quic',
           '--no-first-run', '--disable-background-networking',
           '--disable-component-update', '--disable-sync',
           '--disable-dev-shm-usage')
# A wide screen and a phone.
WIDTHS = (1280, 400)
