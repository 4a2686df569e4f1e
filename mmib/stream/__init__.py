# Copyright (c) mmib contributors. All rights reserved.
"""Which slot comes next, and where a run is."""
