"""Which sources the library is made of, and those that the build writes: one file per kernel and type, or
kernel and instruction set.

Imports neither PyTorch nor setuptools: setup.py, the simulator and tests share it.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent
WRITTEN = ROOT / "build" / "sources"

# ---- CUDA: a family of kernels and a type in each file, so that many compile at once.

TYPES = {"half": "__half", "bfloat16": "__nv_bfloat16", "float": "float"}
# Family: the header that defines its launchers, and those, of which there is one for each type T.
FAMILIES = {
    "copy_reduce": ("spmm/copy_reduce.cuh", ["copy_reduce_of<T>"]),
    "copy_reduce_backward": ("spmm/copy_reduce_backward.cuh", ["copy_reduce_backward_of<T>"]),
    "column_gradients": ("attention/pair/column_gradients.cuh", ["column_gradients_of<T>"]),
    "edge_sum": ("spmm/edge_sum.cuh", ["edge_sum_of<T>"]),
    "edge_sum_backward": ("spmm/edge_sum_backward.cuh", ["edge_sum_backward_of<T>"]),
    "edge_softmax": ("softmax/edge_softmax.cuh", ["launch_softmax<T, false>", "launch_softmax<T, true>"]),
    "gat_attention": ("attention/gat/kernel.cuh", ["gat_attention_of<T>"]),
    "gat_attention_backward": (
        "attention/gat/backward_kernel.cuh",
        ["gat_prepare_backward_of<T>", "gat_attention_backward_of<T>", "gat_edge_gradient_of<T>"],
    ),
    "gated_sum": ("spmm/gated_sum.cuh", ["gated_sum_of<T>"]),
    "gated_sum_backward": ("spmm/gated_sum_backward.cuh", ["gated_sum_backward_of<T>"]),
    "mul_backward": ("spmm/mul_backward.cuh", ["mul_backward_of<T>"]),
    "projected_gradients": ("attention/pair/projected_gradients.cuh", ["projected_gradients_of<T>"]),
    "sddmm_dot": ("sddmm/sddmm_dot.cuh", ["sddmm_dot_of<T>"]),
    "sddmm_elementwise": ("sddmm/sddmm_elementwise.cuh", ["sddmm_elementwise_of<T>"]),
    "spmm_extremum": ("spmm/spmm_extremum.cuh", ["spmm_extremum_of<T>"]),
    "spmm_sum": ("spmm/spmm_sum.cuh", ["spmm_sum_of<T>"]),
}

# Dot attention and GATv2: of a score and of what edges add (policies of attention/pair).
PAIR_EDGES = {
    "Dot": {"": ["NoEdges"], "_edges": ["BiasEdges", "RowEdges", "ColumnEdges"]},
    "Leaky": {"": ["NoEdges"], "_edges": ["BiasEdges", "RowEdges"], "_projected": ["ProjectedEdges"]},
}
for score, files in PAIR_EDGES.items():
    for suffix, policies in files.items():
        launchers = [f"pair_on_lanes<{score}, {edges}, T>" for edges in policies]
        FAMILIES[f"{score.lower()}_lanes{suffix}"] = ("attention/pair/lanes/kernel.cuh", launchers)
FAMILIES["dot_tensor"] = (
    "attention/pair/tensor/kernel.cuh",
    [f"dot_on_tensor_cores<{edges}, T>" for edges in ("BiasEdges", "ColumnEdges")],
)

# Families of some types alone.
TYPES_OF = {"dot_tensor": ("half", "bfloat16")}

# ---- CPU: all kernels once per instruction set, in several files that compile at once and fill one table.

# Headers of csrc/cpu/kernels that are compiled: each defines some kernels, and the last one their table.
CPU_KERNELS = [
    "spmm",
    "edge_sum",
    "gated_sum",
    "code_sum",
    "coo_sum",
    "coo_softmax",
    "copy_reduce",
    "sddmm",
    "backward",
    "edge_softmax",
    "attention/gat",
    "attention/pair",
    "head_logits",
    "dequantize",
    "table",
]
# Name in the file and in C++; condition of the preprocessor, GCC's name of the instructions, lanes of a vector, and what
# else is defined for vec.h. csrc/cpu/kernels/choose.cpp says which processors have them.
X86_64 = "defined(__x86_64__)"
AVX512 = "avx512f,avx512bw,avx512vl,avx512dq"
INSTRUCTION_SETS = {
    "default": ("baseline", None, None, 8, []),  # the compiler's own: SSE2 on x86-64, NEON on Arm
    "avx2": ("avx2", X86_64, "avx2,fma,f16c", 8, ["F16C"]),
    "avx512": ("avx512", X86_64, f"avx2,fma,f16c,{AVX512}", 16, ["F16C", "AVX512"]),
}
# Not in the library: the code of long vectors on processors with short ones, each vector in parts.
TEST_INSTRUCTION_SETS = {
    "wide": ("wide", X86_64, "avx2,fma,f16c", 16, ["F16C"]),
    "wide_arm": ("wide", "defined(__aarch64__)", None, 16, []),
}

TITLE = "// Written by build_sources.py.\n"


def cuda_instance(family: str, name: str) -> str:
    header, launchers = FAMILIES[family]
    path = ROOT / "csrc" / "cuda" / "kernels" / header
    instances = [re.sub(r"\bT\b", TYPES[name], launcher) for launcher in launchers]
    lines = [f"template decltype({instance}) {instance};" for instance in instances]
    return "\n".join(
        [f'{TITLE}#include "{path}"\n', "namespace halfgnn::cuda {", *lines, "}  // namespace halfgnn::cuda\n"]
    )


def cpu_instance(kernel: str, instruction_set: str) -> str:
    namespace, condition, target, lanes, features = (INSTRUCTION_SETS | TEST_INSTRUCTION_SETS)[instruction_set]
    path = ROOT / "csrc" / "cpu" / "kernels" / f"{kernel}.h"
    macros = [f"ISA {namespace}", f'ISA_NAME "{namespace}"', f"LANES {lanes}", *(f"{name} 1" for name in features)]
    defines = "".join(f"#define HALFGNN_{macro}\n" for macro in macros)
    text = f'{TITLE}{defines}#include "{path}"\n'
    if target is not None:
        text = for_target(target, text)
    return text if condition is None else f"{TITLE}#if {condition}\n{text.removeprefix(TITLE)}#endif\n"


def for_target(target: str, text: str) -> str:
    """A pragma, not a compiler flag: this file alone gets the instructions, and a wheel runs on any processor."""
    return f"""{TITLE}#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("{target}"))), apply_to = function)
#else
#pragma GCC target("{target}")
#endif
{text.removeprefix(TITLE)}#if defined(__clang__)
#pragma clang attribute pop
#endif
"""


def write(path: Path, text: str) -> Path:
    """Leaves a file alone that holds the text already: ninja looks at the time."""
    if not path.is_file() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return path


def include_all(files: list[Path]) -> str:
    """A file that includes these: reading PyTorch's headers is most of their compilation, and is done once."""
    return "".join(f'#include "{file}"\n' for file in files)


# ---- What to compile.


def operators(abi: str) -> list[Path]:
    """abi: the implementation of csrc/torch, aten or stable."""
    return [ROOT / "csrc" / "library.cpp", *_sources("csrc/ops/*.cpp"), *_sources(f"csrc/torch/{abi}/*.cpp")]


def autograd() -> list[Path]:
    return _sources("csrc/torch/autograd/*.cpp")


def cpu_bindings() -> list[Path]:
    return _sources("csrc/cpu/*.cpp")


def cuda_bindings() -> list[Path]:
    return _sources("csrc/cuda/*.cpp")


def cpu_kernels(instruction_sets=tuple(INSTRUCTION_SETS)) -> list[Path]:
    texts = {
        f"cpu_{kernel.replace('/', '_')}_{isa}.cpp": cpu_instance(kernel, isa)
        for kernel in CPU_KERNELS
        for isa in instruction_sets
    }
    return _sources("csrc/cpu/kernels/*.cpp") + [write(WRITTEN / name, text) for name, text in sorted(texts.items())]


def cuda_kernels(types=tuple(TYPES)) -> list[Path]:
    """With those that are written for some types alone."""
    texts = {
        f"{family}_{name}.cu": cuda_instance(family, name)
        for family in FAMILIES
        for name in types
        if name in TYPES_OF.get(family, TYPES)
    }
    return _sources("csrc/cuda/kernels/**/*.cu") + [write(WRITTEN / name, text) for name, text in sorted(texts.items())]


def yardsticks() -> list[Path]:
    """Schemas of a library of its own, which is not shipped."""
    return [ROOT / "benchmarks" / "yardsticks" / "library.cpp"]


def cuda_yardsticks() -> tuple[list[Path], list[Path]]:
    """Bindings and kernels."""
    return [p for p in _sources("benchmarks/yardsticks/*.cpp") if p not in yardsticks()], _sources(
        "benchmarks/yardsticks/*.cu"
    )


def _sources(pattern: str) -> list[Path]:
    return sorted(ROOT.glob(pattern))
