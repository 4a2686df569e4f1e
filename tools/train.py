# Copyright (c) mmib contributors. All rights reserved.
"""The same as ``mmib train``."""
import sys

from mmib_cli import main

if __name__ == '__main__':
    main(['train', *sys.argv[1:]])
