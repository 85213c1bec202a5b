"""A plugin of pytest for GPUs: if an error has broken the CUDA context of a process, the process ends. pytest-xdist
then starts another one, so that only the current test fails and not all tests that follow."""

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
        time.sleep(1)  # time to send the report
        os._exit(70)


def _is_broken():
    """Whether a kernel's error has broken the context. Then every later call raises the error again."""
    if "PYTEST_XDIST_WORKER" not in os.environ or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
        torch.ones(1, device="cuda").item()
    except RuntimeError:
        return True
    return False
