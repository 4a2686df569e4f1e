# Copyright (c) mmib contributors. All rights reserved.
"""One HTML file that shows a run, for ``mmib report``."""
