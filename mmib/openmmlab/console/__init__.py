# Copyright (c) mmib contributors. All rights reserved.
"""What a person is told of a training: lines of log, scalars and counts."""
