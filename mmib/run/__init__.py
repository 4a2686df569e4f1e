# Copyright (c) mmib contributors. All rights reserved.
"""A run: plans, stream and scores together."""
