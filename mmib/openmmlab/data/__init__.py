# Copyright (c) mmib contributors. All rights reserved.
"""Which image an index is, which images are listed, which one was delivered.
"""
