"""What pytest does besides on a GPU: a process whose CUDA context an error has broken ends, so that pytest-xdist starts
another one and the test in hand is blamed, not all that follow."""

import os
import sys
import time

import pytest
import torch


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    item.has_failed = getattr(item, "has_failed", False) or outcome.get_result().failed


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    yield
    if getattr(item, "has_failed", False) and _is_broken():
        print(f"\nthe CUDA context is lost after {item.nodeid}", file=sys.stderr, flush=True)
        time.sleep(1)  # for the report to get away
        os._exit(70)


def _is_broken():
    """Errors of kernels stay with a process: each later call raises them again."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except RuntimeError:
        return True
    return False
