"""Random calls of halfgnn on the CPU, right and wrong ones, compared with halfgnn.reference by the rule of
tests/support.py.

    make fuzz CASES=10000 SEED=1              under AddressSanitizer and UBSan
    python -m laboratory.fuzz --seed 1 --case 47   one case, on the library of the checkout

A case is the text of a program, which depends only on (seed, number). If it fails, the program that ran is printed, so
that it can be pasted into a `python` in the checkout. draw.py draws the parts that all kinds of cases share.
operators.py, structures.py and wrong.py have the kinds. checks.py has the functions that programs call. workers.py runs
programs in processes that may die.
"""
