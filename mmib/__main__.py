# Copyright (c) mmib contributors. All rights reserved.
"""``python -m mmib``, for launchers such as ``torchrun -m mmib``."""
from mmib_cli import main

if __name__ == '__main__':
    main()
