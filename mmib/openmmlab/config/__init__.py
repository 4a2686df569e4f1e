# Copyright (c) mmib contributors. All rights reserved.
"""What is done to a config before a run: convert, shorten, check."""
