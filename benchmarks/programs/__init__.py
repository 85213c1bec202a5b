"""Programs of torch_geometric, unmodified, without and with halfgnn's drop-in: ``python -m benchmarks programs``.

``layers``, ``readouts``, ``models`` and ``forms`` have the programs, ``data`` what they read. ``step`` makes their steps and checks
them, ``measure`` times them, ``records`` keeps and shows the rows. ``command`` can be imported without torch_geometric.
"""
