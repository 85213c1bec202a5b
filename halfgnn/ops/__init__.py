"""Message-passing operators with DGL's names, arguments and broadcasting, on a halfgnn.Graph or a DGLGraph.

Generic: gspmm, gsddmm, edge_softmax, segment_reduce. Fused: gat_attention, gatv2_attention, dot_attention. Several reductions at
once: copy_u_reduce. Rows by id: gather_rows. Of both ends and the edge: u_add_v_add_e, gated_sum.
Generated from the generic operators: u_{add,sub,mul,div,relu_add}_e_{sum,mean,max,min}, copy_{u,e}_{sum,mean,max,min},
{u,v,e}_{add,sub,mul,div,dot}_{u,v,e} and copy_{u,v,e}. __init__.pyi names them for editors and type checkers.
"""

import difflib as _difflib
from typing import Any as _Any

from . import coo_softmax, coo_sum, head_logits, topology  # noqa: F401  (register fake kernels)
from . import sddmm as _sddmm
from . import spmm as _spmm
from .attention import dot_attention, gat_attention, gatv2_attention
from .copy_u_reduce import copy_u_reduce
from .edge_network import edge_network
from .edge_softmax import edge_softmax
from .gated_sum import gated_sum
from .gather_rows import gather_rows
from .sddmm import gsddmm, u_add_v_add_e
from .segment_reduce import segment_reduce
from .spmm import gspmm

for _name, _function in {**_spmm.FUNCTIONS, **_sddmm.FUNCTIONS}.items():
    _function.__name__ = _function.__qualname__ = _name
    _function.__module__ = __name__
    globals()[_name] = _function

__all__ = [
    "copy_u_reduce",
    "dot_attention",
    "edge_network",
    "edge_softmax",
    "gat_attention",
    "gated_sum",
    "gather_rows",
    "gatv2_attention",
    "gsddmm",
    "gspmm",
    "segment_reduce",
    "u_add_v_add_e",
    *_spmm.FUNCTIONS,
    *_sddmm.FUNCTIONS,
]


def __getattr__(name: str) -> _Any:
    """The error for a name that is not here: which operators have similar ones."""
    similar = [] if name.startswith("_") else _difflib.get_close_matches(_usual(name), __all__)
    remedy = f"; did you mean {' or '.join(similar)}?" if similar else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{remedy}")


def _usual(name: str) -> str:
    """A name with the usual word for a reduction."""
    stem, _, last = name.rpartition("_")
    reduce = {"add": "sum", "avg": "mean", "amax": "max", "amin": "min"}.get(last)
    return name if reduce is None or stem.count("_") < 1 else f"{stem}_{reduce}"
