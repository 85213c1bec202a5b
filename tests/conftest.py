import os

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Workers share the cores. If each had a thread per core, they would mostly wait for one another. This comes before the
    # libraries that bring OpenMP along: PyTorch has its own, and DGL another one, whose threads are busy while they wait.
    cores = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))

import pytest
import torch

from tests import support


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20)


@pytest.fixture(params=support.DEVICES)
def device(request):
    return request.param
