"""Benchmarks of halfgnn beside DGL and PyTorch: ``python -m benchmarks --help``.

Results are checked before they are timed: every result of halfgnn is compared with :mod:`halfgnn.reference` in float64,
in the same process. Backends of one case take turns, so that a disturbance of the machine affects all of them. Raw
rows go to a CSV file. Every published figure comes from the rows committed under ``benchmarks/results``.

* ``graphs`` and ``inputs`` make the inputs. ``operators`` declares the operators, ``models`` the layers and models.
* ``sweep`` makes the cases of operators. ``layer``, ``train``, ``overhead`` and ``limits`` make the other cases.
* ``baselines`` has the competitors, one plug-in each.
* ``timing`` is the clock. ``runner`` checks and times a case.
* ``rows``, ``targets``, ``table`` and ``plot`` keep, judge and show the results.
"""
