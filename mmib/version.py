# Copyright (c) mmib contributors. All rights reserved.
__version__ = '1.0.0'
