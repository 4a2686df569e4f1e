# Copyright (c) mmib contributors. All rights reserved.
"""The parts of ``run_arms.py``, ``report_arms.py`` and ``time_arms.py``."""
