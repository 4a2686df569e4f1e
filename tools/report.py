# Copyright (c) mmib contributors. All rights reserved.
"""Write one HTML file that shows a training."""
from mmib.report import main

if __name__ == '__main__':
    main()
