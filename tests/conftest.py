# Copyright (c) mmib contributors. All rights reserved.
import os

import hypothesis
import torch

# The time of an example says nothing on a busy machine.
hypothesis.settings.register_profile('mmib', deadline=None)
hypothesis.settings.load_profile('mmib')

# Small networks, and tests with several processes: more threads only wait
# for each other.
torch.set_num_threads(1)
os.environ['OMP_NUM_THREADS'] = '1'
