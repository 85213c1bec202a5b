"""Random calls of halfgnn on the CPU, right and wrong ones, held to halfgnn.reference and to the accuracy rule of tests/support.py.

    make fuzz CASES=10000 SEED=1              under AddressSanitizer and UBSan
    python -m tests.fuzz --seed 1 --case 47   one case, on the library of the checkout

A case is the text of a program, drawn from (seed, number) alone. It is run as it is printed when it fails, so that it can be
pasted into a `python` that runs in the checkout. draw.py draws what all kinds of cases share, operators.py, structures.py and
wrong.py are the kinds, checks.py is what programs call, workers.py runs them in processes that may die.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tests, for support and for programs
