"""Shared by the GPU tests: every operator with its gradients, as functions of tensors on a graph with hubs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import halfgnn
from halfgnn import ops
from tests import support, support_attention

DEVICE = "cuda"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
needs_gpu = pytest.mark.skipif(
    not (halfgnn.has_cuda() and torch.cuda.is_available()), reason="needs the CUDA back end and a GPU"
)


@dataclass(frozen=True)
class Case:
    """call(g, *operands) is differentiable in all operands. shapes: target (None: a parameter) and trailing shape of
    each operand. tensor_cores: whether attentions must take them, where they can; None: as the planner chooses."""

    name: str
    call: Callable[..., Tensor]
    shapes: tuple[tuple[str | None, tuple[int, ...]], ...]
    float_rhs: bool = False  # the second operand is always fp32
    tensor_cores: bool | None = None

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """Of the forward and the backward."""
        with pytest.MonkeyPatch.context() as patch:
            if self.tensor_cores is not None:
                patch.setenv("HALFGNN_TENSOR_CORES", str(int(self.tensor_cores)))
            yield

    def operands(self, g: halfgnn.Graph, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
        # Away from zero, because some operators divide.
        kinds = [dtype, torch.float32 if self.float_rhs else dtype]
        kinds += [dtype] * (len(self.shapes) - len(kinds))
        return [
            support.away_from_zero(*self._rows(g, target), *shape, dtype=kind, device=device)
            for (target, shape), kind in zip(self.shapes, kinds)
        ]

    @staticmethod
    def _rows(g: halfgnn.Graph, target: str | None) -> list[int]:
        return [] if target is None else [support.rows_of(g, target)]


def _spmm(op: str, reduce: str, lhs=None, rhs=None, note: str = "", **options) -> Case:
    def call(g, *operands):
        x, y = (operands[0] if lhs is not None else None), (operands[-1] if rhs is not None else None)
        return ops.gspmm(g, op, reduce, x, y, **options)

    shapes = [("u", lhs)] * (lhs is not None) + [("e", rhs)] * (rhs is not None)
    return Case(f"{op}_{reduce}{note}", call, tuple(shapes), float_rhs=note == "_fp32_weights")


def _reduce(name: str, width: int) -> Case:
    """One of four reductions at once."""
    names = ("mean", "max", "min", "std")
    return Case(f"several_{name}", lambda g, x: ops.copy_u_reduce(g, x, names)[names.index(name)], (("u", (width,)),))


def _sddmm(op: str, targets: str, lhs=None, rhs=None) -> Case:
    def call(g, *operands):
        x, y = (operands[0] if lhs is not None else None), (operands[-1] if rhs is not None else None)
        return ops.gsddmm(g, op, x, y, *targets)

    shapes = [(targets[0], lhs)] * (lhs is not None) + [(targets[1], rhs)] * (rhs is not None)
    return Case(f"{targets[0]}_{op}_{targets[1]}", call, tuple(shapes))


def _gated(note: str, width: int, targets: str = "uuve", **options) -> Case:
    """The result and z, in one tensor."""

    def call(g, *operands):
        return torch.cat(ops.gated_sum(g, *operands, return_edges=True, **options))

    return Case(f"gated_sum{note}", call, tuple((target, (width,)) for target in targets))


def _softmax(norm_by: str, shape) -> Case:
    return Case(
        f"edge_softmax_{norm_by}_{'x'.join(map(str, shape))}",
        lambda g, x: ops.edge_softmax(g, x, norm_by),
        (("e", shape),),
    )


def _segments(reduce: str) -> Case:
    return Case(f"segment_{reduce}", lambda g, x: ops.segment_reduce(g.in_degrees(), x, reduce), (("e", (5,)),))


def attention(kind: support_attention.Kind, heads: int, dim: int, dropout_p: float = 0.0) -> Case:
    def call(g, *operands):
        with support_attention.fixed_seed():
            return kind.call(g, *operands, dropout_p=dropout_p)

    note = "_dropout" if dropout_p else ""
    name = f"{kind.name}_attention_{heads}x{dim}{note}"
    return Case(name, call, tuple(kind.shapes(heads, dim)))


_UNIT = {None: "", True: "_tensor_cores", False: "_lanes"}


def attention_edges(
    heads: int, dim: int, dropout_p: float = 0.0, columns: int = 0, tensor_cores: bool | None = None
) -> list[Case]:
    """Both attentions with a bias of edges, and with rows beside it, or with columns that each edge has."""

    def case(operator, kind, **terms):
        def call(g, *operands):
            named = dict(zip(terms, operands))
            with support_attention.fixed_seed():
                return operator(g, *operands[len(terms) :], dropout_p=dropout_p, **named)

        shapes = (*terms.values(), *kind.shapes(heads, dim))
        name = f"{kind.name}_attention_{'_'.join(terms)}_{heads}x{dim}{_UNIT[tensor_cores]}"
        return Case(name, call, shapes, tensor_cores=tensor_cores)

    dot, gatv2 = (ops.dot_attention, support_attention.DOT), (ops.gatv2_attention, support_attention.GATV2)
    bias, row = {"edge_bias": ("e", (heads,))}, ("e", (heads, dim))
    if columns:
        feat, weight = {"edge_feat": ("e", (columns,))}, (None, (heads * dim, columns))
        return [
            case(*dot, **feat, edge_key_weight=weight, edge_value_weight=weight),
            case(*dot, **bias, **feat, edge_value_weight=weight),
            case(*gatv2, **feat, edge_weight=weight),
            case(*gatv2, **bias, **feat, edge_weight=weight),
        ]
    return [
        *(case(*kind, **bias) for kind in (dot, gatv2)),
        case(*dot, **bias, edge_key=row, edge_value=row),
        case(*gatv2, **bias, edge_feat=row),
    ]


CASES = [
    *(_spmm(op, reduce, (2, 24), (2, 1)) for op in ("add", "sub", "mul", "div") for reduce in support.REDUCES),
    *(_spmm("copy_lhs", reduce, (48,)) for reduce in support.REDUCES),
    *(_spmm("copy_rhs", reduce, rhs=(4,)) for reduce in support.REDUCES),
    _spmm("copy_lhs", "sum", (3,), note="_narrow"),
    _spmm("copy_lhs", "sum", (602,), note="_wide"),
    _spmm("mul", "sum", (64,), (1,), note="_1_head"),
    _spmm("mul", "sum", (8, 31), (8, 1), note="_odd"),
    _spmm("mul", "sum", (33,), (33,), note="_same_shape"),
    _spmm("relu_add", "mean", (40,), (40,)),
    _spmm("sub", "sum", (5,), (5,), note="_same_shape"),
    _spmm("mul", "mean", (3, 1, 8), (1, 4, 1), note="_broadcast"),
    _spmm("mul", "sum", (64,), (1,), note="_fp32_weights"),
    _spmm("mul", "sum", (64,), (1,), note="_fp32_result", out_dtype=torch.float32),
    *(_reduce(name, 24) for name in ("max", "std")),
    *(_sddmm(op, "uv", (2, 24), (2, 24)) for op in ("add", "sub", "mul", "div", "dot")),
    *(_sddmm(op, "ev", (2, 24), (2, 1)) for op in ("add", "sub", "mul", "div")),
    _sddmm("dot", "uv", (64,), (64,)),
    _sddmm("dot", "ve", (4, 31), (4, 31)),
    _sddmm("add", "uv", (8, 1), (8, 1)),
    _sddmm("copy_lhs", "uv", (24,)),
    _sddmm("copy_rhs", "uv", rhs=(24,)),
    Case("u_add_v_add_e", ops.u_add_v_add_e, (("u", (24,)), ("v", (24,)), ("e", (24,)))),
    _gated("", 24),
    _gated("_normalized", 41, normalize=True),
    _gated("_of_edge_values", 24, "uuvee"),
    Case(
        "edge_network",
        lambda g, u, v, e, of_edges, weight: ops.edge_network(
            g, u, v, [(weight, None)], edge_feat=e, edge_weight=of_edges, activation="tanh"
        ),
        (("u", (24,)), ("v", (24,)), ("e", (8,)), (None, (24, 8)), (None, (5, 24))),
    ),
    *(_softmax(norm_by, shape) for norm_by in ("dst", "src") for shape in ((1,), (8, 1), (37,))),
    *(_segments(reduce) for reduce in support.REDUCES),
    *(attention(kind, 4, 32, dropout_p) for kind in support_attention.KINDS for dropout_p in (0.0, 0.4)),
    # One head; odd width; too wide for a warp's registers, in whole vectors and in single elements.
    *(attention(kind, *shape) for kind in support_attention.KINDS for shape in ((1, 64), (3, 5), (1, 1032), (1, 133))),
    *(attention_edges(4, 32, 0.4) + attention_edges(3, 5)),
    *(attention_edges(4, 32, columns=8) + attention_edges(3, 5, columns=3)),
    # One and two blocks of 64 elements on tensor cores, whole and not, and the same on lanes.
    *(
        case
        for unit in (True, False)
        for dim in (40, 128)
        for case in (
            *attention_edges(1, dim, 0.4, tensor_cores=unit),
            *attention_edges(1, dim, columns=16, tensor_cores=unit),
        )
    ),
]
CASES = list({case.name + str(case.shapes): case for case in CASES}.values())
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def hub_ends(hub_edges: int = 3_000, num_nodes: int = 150, num_edges: int = 900) -> tuple[Tensor, Tensor]:
    """An edge list with a node of many in-edges and a node of many out-edges, whose rows are long enough to be cut into
    pieces. The other nodes have few edges. The last third of the nodes has no edge."""
    generator = torch.Generator().manual_seed(7)
    ends = torch.randint(num_nodes * 2 // 3, (2, num_edges + 2 * hub_edges), generator=generator)
    ends[1, :hub_edges] = 5
    ends[0, hub_edges : 2 * hub_edges] = 11
    order = torch.randperm(ends.shape[1], generator=generator)
    return ends[0, order], ends[1, order]


def hub_graph(idtype: torch.dtype = torch.int32, device: str = "cpu", **sizes: int) -> halfgnn.Graph:
    src, dst = (ids.to(device, idtype) for ids in hub_ends(**sizes))
    num_nodes = sizes.get("num_nodes", 150)
    return halfgnn.Graph.from_edges(src, dst, num_src=num_nodes, num_dst=num_nodes)


def with_gradients(case: Case, g: halfgnn.Graph, leaves: list[Tensor], upstream: list[Tensor]) -> list[Tensor]:
    """Result and gradients. upstream: the gradient of the result, which is made at the first call."""
    with case.environment():
        out = case.call(g, *leaves)
        if not upstream:
            upstream.append(torch.randn(out.shape, dtype=torch.float32).to(out.device, out.dtype))
        return [out.detach(), *torch.autograd.grad(out, leaves, upstream[0])]


def setup(case: Case, dtype: torch.dtype, idtype: torch.dtype = torch.int32, **sizes: int):
    """(graph, leaves) on the GPU."""
    g = hub_graph(idtype, DEVICE, **sizes)
    return g, [x.requires_grad_() for x in case.operands(g, dtype, DEVICE)]


def assert_same(results: list[Tensor], expected: list[Tensor], what: str = "") -> None:
    """Requires equal bits, also of NaN."""
    for i, (a, b) in enumerate(zip(results, expected, strict=True)):
        assert torch.equal(a.view(torch.uint8), b.view(torch.uint8)), f"result {i} differs {what}"
