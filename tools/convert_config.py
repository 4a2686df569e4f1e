# Copyright (c) mmib contributors. All rights reserved.
"""The same as ``mmib convert``."""
import sys

from mmib_cli import main

if __name__ == '__main__':
    main(['convert', *sys.argv[1:]])
