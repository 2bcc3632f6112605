"""One thread a worker: the suite runs under xdist, and small tensors gain nothing from more.

What the fault suite counted is said from here, since xdist's controller loads no conftest below.
"""

import torch

from faults.tally import pytest_sessionfinish, pytest_terminal_summary, pytest_testnodedown, tally  # noqa: F401

torch.set_num_threads(1)
