import os

import pytest
import torch

from tests import support

if "PYTEST_XDIST_WORKER" in os.environ:
    # Workers share the cores. If each had a thread per core, they would mostly wait for one another.
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // workers))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20)


@pytest.fixture(params=support.DEVICES)
def device(request):
    return request.param
