"""The CUDA kernels of csrc on the CPU: builds them against a simulator of CUDA's execution model, runs tests on them, and
measures which of their lines ran.

build.py     compiles the library that takes the place of halfgnn/_C.so, and says in what environment it runs
run.py       runs test modules on it, several at once
coverage.py  lines of csrc/cuda/kernels that ran
control.py   seeds, device attributes and negative controls, for tests that run on the simulator
plugin.py    what pytest does besides on the simulator
include      headers instead of CUDA's; *.cpp, *.h: the machine; selftest.cu: kernels that test it
"""
