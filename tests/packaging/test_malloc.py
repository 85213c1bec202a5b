"""halfgnn.keep_memory, in processes of its own: it changes the C library's settings for good."""

import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from halfgnn.common import malloc

GLIBC = "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))
pytestmark = pytest.mark.skipif(not GLIBC, reason="about glibc")

# Fresh pages of the tenth result of 64 MiB, and the resident MiB afterwards.
PROGRAM = """
import resource, sys, torch, halfgnn
if sys.argv[1] != "default":
    print(halfgnn.keep_memory(), file=sys.stderr)
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    before = faults()
    torch.ones(1 << 24)
print(faults() - before)
if sys.argv[1] == "given back":
    print(halfgnn.keep_memory(False), file=sys.stderr)
with open("/proc/self/statm") as file:
    print(int(file.read().split()[1]) * resource.getpagesize() >> 20)
"""


def run(what, **environment):
    command = [sys.executable, "-c", PROGRAM, what]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return (*map(int, done.stdout.split()), done.stderr)


def test_a_freed_block_stays():
    pages = (64 << 20) // resource.getpagesize()
    fresh, usual, _ = run("default")
    kept, resident, said = run("kept")
    assert fresh >= pages and kept < pages / 16
    assert resident >= usual + 48 and "keeps freed memory" in said


def test_it_is_given_back():
    _, resident, said = run("given back")
    assert resident < run("kept")[1] - 48 and "gives freed blocks" in said


@pytest.mark.parametrize(
    "process, reason", [("other", "another library than glibc"), ("none", "the C library is not glibc")]
)
def test_another_malloc_is_left_alone(monkeypatch, process, reason):
    """It would ignore mallopt, and say nothing."""
    real = malloc.ctypes.CDLL

    def library(name):
        if name is not None:
            return real(name)
        return SimpleNamespace(malloc=real("libc.so.6").calloc) if process == "other" else SimpleNamespace()

    monkeypatch.setattr(malloc.ctypes, "CDLL", library)
    assert malloc.keep_memory().startswith(f"Nothing changed: {reason}")


def test_the_time_of_a_fresh_page():
    assert 0 < malloc.seconds_per_fresh_page(64) < 1
