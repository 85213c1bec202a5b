"""Benchmarks of halfgnn beside DGL and PyTorch: ``python -m benchmarks --help``.

Results are checked before they are timed: every result of halfgnn is compared with :mod:`halfgnn.reference` in float64,
in the same process. Contestants of one case take turns, so that a disturbance of the machine affects all of them. Raw
rows go to a CSV file. Every published figure comes from the rows committed under ``benchmarks/results``.

Each operator family is a module with a generator ``cases(config)``: ``spmm``, ``sddmm``, ``softmax``, ``edges``,
``attention``, ``layer``, ``train``, ``overhead``, ``limits``. The other modules:

* ``graphs`` makes the inputs.
* ``baselines`` has the competitors, one plug-in each, and ``rivals`` the competitors of a case.
* ``timing`` is the clock. ``runner`` checks and times a case.
* ``rows``, ``marks`` and ``table`` keep, judge and print the results.
"""
