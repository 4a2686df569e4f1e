# Copyright (c) mmib contributors. All rights reserved.
"""What tests of several folders use."""
