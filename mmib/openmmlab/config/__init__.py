# Copyright (c) mmib contributors. All rights reserved.
"""What is done to a config before the training: convert, shorten, check."""
