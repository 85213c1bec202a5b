import os

if "PYTEST_XDIST_WORKER_COUNT" in os.environ:
    # Workers share the cores. If each had a thread per core, they would mostly wait for one another. This comes before the
    # libraries that bring OpenMP along: PyTorch has its own, and DGL another one, whose threads are busy while they wait.
    cores = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores)))

import pytest
import torch

from tests import support
from tests.sample import keep, sample

support.check_settings(os.environ)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(20)


@pytest.fixture(params=support.DEVICES)
def device(request):
    return request.param


# What takes longest begins first: at the end one worker would run it while the others have nothing left to do.
LONG = (
    "laboratory/instructions/",
    "tests/examples/test_training.py::test_half_training",
    "tests/benchmarks/test_benchmarks.py",
    "tests/ops/test_compile.py",
    "tests/ops/test_attention_autograd.py::test_compiled",
)


# Of a test with more cases `make test` runs so many that every value of every parameter is there, make test-all all of them.
MANY = 8


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(config, items):
    if "cpu" in support.DEVICES and not os.environ.get("HALFGNN_TEST_ALL"):
        keep(config, items, sample(items, MANY))
    if "cpu" in support.DEVICES:
        items.sort(
            key=lambda item: next((i for i, start in enumerate(LONG) if item.nodeid.startswith(start)), len(LONG))
        )
    else:  # on a GPU, whose time is short
        items.sort(key=lambda item: "compile" in item.nodeid or item.nodeid.startswith(LONG))
