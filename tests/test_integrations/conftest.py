# Copyright (c) mmib contributors. All rights reserved.
from importlib.util import find_spec

# `make test-frameworks` has all frameworks, and `make test` some of them.
collect_ignore_glob = [] if find_spec('lightning') else ['test_*.py']
