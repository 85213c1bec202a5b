"""torch.compile on halfgnn: FX graphs of plain PyTorch and of torch_geometric, of which gathers and reductions become operators.

``torch.compile(model, backend="halfgnn")`` is Inductor with a pass before autograd, :mod:`.lowering`.
"""
