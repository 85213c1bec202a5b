"""The planners of csrc/cuda/kernels/plan, compiled for the host without CUDA: what they choose for given sizes."""
