"""torch.compile on halfgnn: rows by an index, and their reductions, in graphs of plain PyTorch and of torch_geometric.

``torch.compile(model, backend="halfgnn")`` is Inductor with a pass before autograd, :mod:`.lowering`. Under
:func:`halfgnn.pyg.patch` a plain ``torch.compile(model)`` has it too.
"""

from .inductor import backend, reset_stats, stats

__all__ = ["backend", "reset_stats", "stats"]
