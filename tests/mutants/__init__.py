"""Mutation testing of the Python layer: which changes of one expression or statement does no test notice?

mutate.py    the mutants of a source file
runner.py    which test executes which line; runs tests on a mutant in a forked process
equivalent.txt  mutants that no test can notice, with reasons: left out
__main__.py  chooses mutants and prints what happened to them: python -m tests.mutants FILES [--sample N] [--seed N]

"Hot" mutants change code of functions, which is exchanged in a process that has already collected every test. "Cold" ones change
what runs at import (defaults, decorators, constants), and are imported by a process that has loaded other packages alone.
"""
