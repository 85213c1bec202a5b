"""The machine code of the CUDA kernels: what it must be like, and tables of it.

disassembly.py  extracts kernels and reads them
flow.py         finds the loops of a kernel
rules.py        no local memory, loads in flight; each with its reason
control.cu      kernels that must break the rules, and one that must not
budgets.py      registers and instructions of every kernel, compared with sm_90.csv and sm_80.csv (make budgets)
tables.py       the tables of docs/machine_code.md
emulator        executes sm_90 machine code on memory and launches that it is given
launches.py     launches of the simulator, recorded or executed by the emulator
paths.py        instructions per row of each fast kernel, and the table of docs/machine_code.md (make paths)
__main__.py     prints tables, compares, rewrites both: python -m laboratory.machine_code [--check | --update] [LIBRARY]
"""
