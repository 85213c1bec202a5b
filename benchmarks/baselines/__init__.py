"""The competitors, as plug-ins: one module each, in the order of their rows. registry.py explains how to write one. A
new one is imported here and named in docs/benchmarks.md."""

from . import dgl, algorithm, pytorch, scipy, pyg, compiled, cudnn, turbo, fastest  # noqa: F401, I001  (the order of their rows)
from .registry import ALL, Competitor, check_messages

NAMES = tuple(dict.fromkeys(competitor.option for competitor in ALL))  # of --baselines
# The competitors of a run that names none. Compilation takes seconds per case, so it must be requested.
BY_DEFAULT = {
    "cpu": ("dgl", "torch.sparse", "embedding_bag", "indexed copy", "index_add", "scipy", "pyg", "fastest copy_u_sum"),
    "cuda": tuple(name for name in NAMES if name != "torch.compile"),
}

__all__ = ["ALL", "BY_DEFAULT", "NAMES", "Competitor", "check_messages"]
