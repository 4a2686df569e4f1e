# Copyright (c) mmib contributors. All rights reserved.
"""The same as ``mmib test``."""
import sys

from mmib_cli import main

if __name__ == '__main__':
    main(['test', *sys.argv[1:]])
