"""The machine code of the CUDA kernels: what it must be like, and tables of it.

disassembly.py  extracts kernels and reads them
flow.py         finds the loops of a kernel
rules.py        limits on registers and local memory, loads in flight; each with its reason
control.cu      kernels that must break the rules, and one that must not
tables.py       the tables of docs/tuning.md
__main__.py     prints or rewrites them: python -m tests.machine_code [--update] [LIBRARY]
"""
