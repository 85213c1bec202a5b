"""The interface of pyg-lib that torch_geometric's neighbour loaders call, on halfgnn's sampler.

``halfgnn.compat.install("pyg_lib")`` before ``import torch_geometric`` makes NeighborLoader and LinkNeighborLoader run without
pyg-lib and torch-sparse. What is not here (clustering, METIS, distributed sampling, ...) torch_geometric finds missing, as it does
without pyg-lib.
"""

from . import ops, sampler

__version__ = "0.9.0+halfgnn"  # of the interface

__all__ = ["__version__", "ops", "sampler"]
