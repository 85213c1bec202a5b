"""Mutation testing of the Python layer: finds changes of one expression or statement that no test notices.

mutate.py    makes the mutants of a source file
runner.py    records which test executes which line, and runs tests on a mutant in a forked process
equivalent.txt  mutants that no test can notice, with reasons; they are left out
__main__.py  chooses mutants and prints the results: python -m laboratory.mutants FILES [--sample N] [--seed N]

"Hot" mutants change the code of functions. A process that has already collected every test replaces that code. "Cold"
mutants change code that runs at import (defaults, decorators, constants). A process that has loaded only other packages
imports them.
"""
