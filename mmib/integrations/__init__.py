# Copyright (c) mmib contributors. All rights reserved.
"""A :class:`~mmib.session.Session` in other frameworks. Each module imports
its framework, which mmib itself does not need."""
