# Copyright (c) mmib contributors. All rights reserved.
"""What is checked, asked and changed of MMEngine's Runner."""
