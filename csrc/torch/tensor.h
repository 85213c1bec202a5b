// All that operators and back ends know of PyTorch. csrc/ops, csrc/cpu and csrc/cuda include files of this folder and
// nothing of PyTorch itself; test_sources.py holds them to it. There are two implementations of the same names:
//
//   aten/    ATen, for torch 2.4 and newer. A library fits the minor version of torch that it was built for.
//   stable/  PyTorch's stable ABI, for torch 2.10 and newer. A library fits every later torch. It calls C functions of
//            PyTorch's shims alone, which tests/packaging/test_stable_abi.py checks.
//
// The build chooses one by HALFGNN_STABLE_ABI (setup.py: HALFGNN_ABI). Names and meanings are those of ATen:
//
//   tensor.h   Tensor, OptionalTensor, ScalarType, Device, DeviceType, TensorOptions, IntArrayRef, string_view,
//              TensorList, OptionalTensorList; empty, zeros, ... A function or method that an operator
//              needs and stable/ lacks is one line of stable/tensor.h: a call of the dispatcher.
//   errors.h   CHECK_VALUE(condition, message...), CHECK_TYPE, CHECK_INDEX, CHECK_IMPLEMENTED: Python's ValueError,
//              TypeError, IndexError and NotImplementedError
//   threads.h  parallel_for, num_threads
//   device.h   DeviceGuard, keep_until_read
//   cuda.h     current_stream, CHECK_CUDA; for csrc/cuda
//   library.h  Library: m.def(schema), m.impl<&function>(name); HALFGNN_SCHEMAS(m), HALFGNN_KERNELS(key, m)
//
// An operator is a function of const Tensor&, const OptionalTensor&, int64_t (also for SymInt), double, bool,
// string_view, ScalarType, std::optional<ScalarType>, IntArrayRef and const TensorList& and const
// OptionalTensorList&, and returns a Tensor, a std::tuple of Tensors and TensorLists, or nothing.
//
// The stable ABI has neither derivatives nor Python's types of errors: halfgnn/_stable_abi.py adds them to operators of
// such a library, as aten/autograd.cpp does here.
#pragma once

#ifdef HALFGNN_STABLE_ABI
#include "stable/tensor.h"
#else
#include "aten/tensor.h"
#endif

#include <optional>

namespace halfgnn {

using OptionalTensor = std::optional<Tensor>;

}  // namespace halfgnn
