"""The machine code of the CUDA kernels: what it must be like, and tables of it.

disassembly.py  extracts kernels and reads them
flow.py         finds the loops of a kernel
rules.py        limits on registers and local memory, loads in flight; each with its reason
control.cu      kernels that must break the rules, and one that must not
facts.py        what every kernel uses, compared with sm_90.csv and sm_80.csv
tables.py       the tables of docs/tuning.md
__main__.py     prints tables, rewrites both: python -m tests.machine_code [--update] [LIBRARY]
"""
