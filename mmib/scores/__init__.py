# Copyright (c) mmib contributors. All rights reserved.
"""What was seen of the images."""
