"""One thread a worker: the suite runs under xdist, and small tensors gain nothing from more."""

import torch

torch.set_num_threads(1)
