# Copyright (c) mmib contributors. All rights reserved.
"""One HTML file that shows a training, for ``mmib report``."""
