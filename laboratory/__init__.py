"""What the kernels are examined with, beside the tests of tests/: most of it needs no PyTorch, much of it minutes.

simt          csrc/cuda with its kernels compiled for the CPU, lanes as fibers, under sanitizers and a race check
machine_code  what the compiled CUDA kernels use and obey; an emulator that executes them, and counts instructions per row
plan          the planners of csrc/cuda, without CUDA
instructions  CPU kernels without PyTorch: their instructions, counted by callgrind; the results of each instruction set
fuzz          random calls of the CPU back end, right and wrong ones, under sanitizers; printed as programs when they fail
mutants       changes of one expression of halfgnn/*.py, and whether a test notices them
"""
