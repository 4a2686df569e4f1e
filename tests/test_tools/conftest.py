# Copyright (c) mmib contributors. All rights reserved.
import os.path as osp
import sys

# As for a script there: the tests import these.
sys.path.append(osp.join(osp.dirname(__file__), '..', '..', 'tools'))
