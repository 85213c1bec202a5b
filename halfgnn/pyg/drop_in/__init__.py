"""The drop-in for torch_geometric: patch() and what it binds. table.py lists all that is intercepted."""
