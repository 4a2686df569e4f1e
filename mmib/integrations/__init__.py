# Copyright (c) mmib contributors. All rights reserved.
"""A :class:`~mmib.session.Session` in other frameworks. Most modules
import a framework, which mmib itself does not need."""
