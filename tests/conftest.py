"""Puts this folder on the path, so that the chapters' tests can share `core_helpers`; one thread for all.

The tests' models are small: several threads would only wait for one another, most of all on a busy machine.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start

import torch

torch.set_num_threads(1)
