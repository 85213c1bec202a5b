"""Modules of torch_geometric.nn, of which the forward is halfgnn's; :mod:`halfgnn.pyg` has their names."""
