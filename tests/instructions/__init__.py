"""What the CPU kernels cost, in instructions: counted by callgrind, compared with committed counts. Needs no quiet machine.

driver.cpp     calls kernels on a fixed graph, without PyTorch
counts.py      builds and runs it, reads what callgrind counted, compares
committed.csv  instructions an edge, by case and instruction set, and the compiler that they are of
__main__.py    prints or rewrites them: python -m tests.instructions [--update]
"""
