"""Processes for tests of several. They are forked from one that has imported PyTorch, and computed nothing."""

import importlib.util
import multiprocessing

import torch

METHOD = "forkserver"
# Each process of a spawn would import them for 3 to 5 seconds.
PRELOADED = ["halfgnn.nn", "halfgnn.distributed", "halfgnn.dataloading", "torch.distributed.nn", "torch_geometric.nn"]


def context():
    multiprocessing.set_forkserver_preload([name for name in PRELOADED if importlib.util.find_spec(name.split(".")[0])])
    return multiprocessing.get_context(METHOD)


def start(task, args, count, **options):
    """task(rank, *args) in so many processes; see torch.multiprocessing.start_processes."""
    context()
    return torch.multiprocessing.start_processes(task, args, count, start_method=METHOD, **options)
