"""Benchmarks of halfgnn beside DGL and PyTorch: ``python -m benchmarks --help``.

Correct first, then timed: every result of halfgnn is compared with :mod:`halfgnn.reference` in
float64 before its operator is timed, in the same process. Contestants of one case take turns, so
that whatever disturbs the machine disturbs all of them. Raw rows go to a CSV file; every published
figure comes from the rows committed under ``benchmarks/results``.

One module an operator family (``spmm``, ``sddmm``, ``softmax``, ``edges``, ``attention``, ``layer``, ``train``, ``overhead``,
``limits``), each a generator ``cases(config)``; ``graphs`` makes the inputs, ``baselines`` has the competitors, a plug-in each,
and ``rivals`` those of a case; ``timing`` is the clock, ``runner`` puts a case through them, ``rows``, ``marks`` and ``table``
keep, judge and print what came out.
"""
