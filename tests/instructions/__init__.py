"""The cost of the CPU kernels in instructions, counted by callgrind and compared with committed counts. Works on a busy
machine too.

driver.cpp     calls kernels on a fixed graph, without PyTorch
counts.py      builds and runs the driver, reads callgrind's counts, and compares them
committed.csv  instructions per edge, by case and instruction set, and the compiler that was used
__main__.py    prints or rewrites them: python -m tests.instructions [--update]
"""
