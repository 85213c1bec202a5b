"""torch_sparse's interface: sparse matrices in row-major order, on halfgnn's operators.

Products with dense matrices are deterministic. Sums of fp16 and bf16 are fp32 and rounded once. METIS and the samplers of
torch_geometric's NeighborLoader are not here: pyg_lib has them. torch.jit.script compiles code that names a SparseTensor, but no
script takes one.
"""

from ._operators import register as _register_operators
from ._scripts import register as _register_scripts
from .cat import cat
from .coo import (
    coalesce,
    eye,
    from_scipy,
    from_torch_sparse,
    spadd,
    spmm,
    spspmm,
    to_scipy,
    to_torch_sparse,
    transpose,
)
from .functions import (
    add,
    add_,
    add_nnz,
    add_nnz_,
    fill_diag,
    get_diag,
    index_select,
    index_select_nnz,
    masked_select,
    masked_select_nnz,
    max,
    mean,
    min,
    mul,
    mul_,
    mul_nnz,
    mul_nnz_,
    narrow,
    narrow_diag,
    partition,
    permute,
    random_walk,
    remove_diag,
    reverse_cuthill_mckee,
    saint_subgraph,
    sample,
    sample_adj,
    select,
    set_diag,
    sum,
    t,
)
from .matmul import matmul
from .storage import SparseStorage
from .tensor import SparseTensor

__version__ = "0.6.18"  # of the interface

__narrow_diag__ = narrow_diag  # its name there

_library = _register_operators()
_register_scripts()

__all__ = [
    "SparseStorage",
    "SparseTensor",
    "__narrow_diag__",
    "add",
    "add_",
    "add_nnz",
    "add_nnz_",
    "cat",
    "coalesce",
    "eye",
    "fill_diag",
    "from_scipy",
    "from_torch_sparse",
    "get_diag",
    "index_select",
    "index_select_nnz",
    "masked_select",
    "masked_select_nnz",
    "matmul",
    "max",
    "mean",
    "min",
    "mul",
    "mul_",
    "mul_nnz",
    "mul_nnz_",
    "narrow",
    "narrow_diag",
    "partition",
    "permute",
    "random_walk",
    "remove_diag",
    "reverse_cuthill_mckee",
    "saint_subgraph",
    "sample",
    "sample_adj",
    "select",
    "set_diag",
    "spadd",
    "spmm",
    "spspmm",
    "sum",
    "t",
    "to_scipy",
    "to_torch_sparse",
    "transpose",
]
