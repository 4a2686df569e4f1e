# Copyright (c) mmib contributors. All rights reserved.
"""The parts of ``tools/benchmark/run_arms.py`` and ``report_arms.py``."""
