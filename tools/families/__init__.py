# Copyright (c) mmib contributors. All rights reserved.
"""The parts of ``tools/check_families.py``."""
