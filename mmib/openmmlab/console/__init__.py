# Copyright (c) mmib contributors. All rights reserved.
"""What a run says to a person: lines of log, scalars and counts."""
