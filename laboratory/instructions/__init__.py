"""The CPU kernels, called without PyTorch. Their cost in instructions, counted by callgrind and compared with committed
counts: that works on a busy machine too. Their results on every instruction set, compared with one another.

context.h      a fixed graph, and operands
cases.h        calls of kernels on it; message_cases.h: of those on rows of edges
driver.cpp     runs them for callgrind
counts.py      builds and runs the drivers, reads callgrind's counts, and compares them
committed.csv  instructions per edge, by case and instruction set, and the compiler that was used
compare.cpp    runs the cases at many shapes on every table of kernels, and compares what they write
__main__.py    prints or rewrites the counts: python -m laboratory.instructions [--update]
"""
