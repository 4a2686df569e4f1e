# Copyright (c) mmib contributors. All rights reserved.
"""Checks of MMEngine's Runner, and changes to it."""
