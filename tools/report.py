# Copyright (c) mmib contributors. All rights reserved.
"""The same as ``mmib report``."""
import sys

from mmib_cli import main

if __name__ == '__main__':
    main(['report', *sys.argv[1:]])
