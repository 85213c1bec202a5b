"""docs/operators.md lists every operator with exactly the dtypes that it takes."""

import pathlib

import pytest
import torch

import halfgnn
from benchmarks import yardsticks

raw = torch.ops.halfgnn
DOC = pathlib.Path(__file__).parents[2] / "docs" / "operators.md"
DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int32": torch.int32,
    "int64": torch.int64,
}
NAMES = {s.name for s in torch._C._jit_get_all_schemas() if s.name.startswith(("halfgnn::", "halfgnn_yardsticks::"))}
SCHEMAS = {name.split("::")[1]: name for name in NAMES}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    not (halfgnn.has_cuda() and torch.cuda.is_available()), reason="needs the CUDA back end and a GPU"))]  # fmt: skip


def table():
    """{operator: {"cpu": dtypes, "cuda": dtypes}}, read from the page."""
    lines = (
        DOC.read_text().split("<!-- operators: begin -->")[1].split("<!-- operators: end -->")[0].strip().splitlines()
    )
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        row[0]: {name.lower(): set(cell.replace("-", "").split()) for name, cell in zip(header[1:], row[1:])}
        for row in rows
    }


def calls(device):
    """Operators as functions of a dtype, on a graph of three edges."""
    src, dst = torch.tensor([[0, 1, 1], [1, 0, 1]], device=device)
    g = halfgnn.Graph.from_edges(src, dst, num_src=2, num_dst=2)
    csc, csr = g.csc(), g.csr()
    of_naive = csc[0].int(), csc[1].int()
    ids = torch.tensor([0, 2, 1], device=device)
    offsets = torch.tensor([0, 1, 3], device=device)

    def ones(rows, dtype):
        return torch.ones(rows, 8, dtype=dtype, device=device)

    def features(dtype):
        return ones(2, dtype).unsqueeze(1)

    def gat(x):
        return halfgnn.ops.gat_attention(g, x, x[..., 0].detach(), x[..., 0].detach())

    return {
        "gspmm": lambda t: raw.gspmm(*csc, "copy_lhs", "sum", ones(2, t), None),
        "gspmm_backward": lambda t: backward(halfgnn.ops.copy_u_sum(g, ones(2, t).requires_grad_())),
        "code_sum": lambda t: raw.code_sum(
            *csc, "sum", ones(2, torch.uint8), ones(1, torch.float32)[0, 0], None, None, t
        ),
        "coo_softmax": lambda t: raw.coo_softmax(src, ones(3, t), 2),
        "coo_softmax_backward": lambda t: raw.coo_softmax_backward(src, ones(3, t), ones(3, t), 2),
        "coo_sum": lambda t: raw.coo_sum(src, dst, ones(2, t), ones(3, t), "relu_add", "mean", 2),
        "coo_sum_backward": lambda t: raw.coo_sum_backward(
            src, dst, ones(2, t), None, None, "copy_lhs", "sum", 2, True, False
        ),
        "copy_u_reduce": lambda t: raw.copy_u_reduce(*csc, ones(2, t), "std,max", 0.0),
        "copy_u_reduce_backward": lambda t: backward(
            halfgnn.ops.copy_u_reduce(g, ones(2, t).requires_grad_(), ("max", "min"))[0]
        ),
        "gsddmm": lambda t: raw.gsddmm(*csc, "dot", ones(2, t), ones(2, t), "u", "v"),
        "gsddmm_backward": lambda t: backward(halfgnn.ops.u_dot_v(g, ones(2, t).requires_grad_(), ones(2, t))),
        "u_add_v_add_e": lambda t: raw.u_add_v_add_e(*csc, ones(2, t), ones(2, t), ones(3, t)),
        "gated_sum": lambda t: halfgnn.ops.gated_sum(g, *[ones(2, t)] * 3),
        "gated_sum_backward": lambda t: backward(
            halfgnn.ops.gated_sum(g, ones(2, t).requires_grad_(), *[ones(2, t)] * 2)
        ),
        "edge_network": lambda t: halfgnn.ops.edge_network(g, ones(2, t)),
        "edge_network_backward": lambda t: backward(halfgnn.ops.edge_network(g, ones(2, t).requires_grad_())),
        "edge_softmax": lambda t: raw.edge_softmax(csc[0], csc[2], ones(3, t)),
        "edge_softmax_backward": lambda t: backward(halfgnn.ops.edge_softmax(g, ones(3, t).requires_grad_())),
        "segment_reduce": lambda t: raw.segment_reduce(offsets, ones(3, t), "max"),
        "segment_reduce_backward": lambda t: backward(
            halfgnn.ops.segment_reduce(torch.tensor([1, 2], device=device), ones(3, t).requires_grad_(), "max")
        ),
        "gat_attention": lambda t: gat(features(t)),
        "gat_attention_backward": lambda t: backward(gat(features(t).requires_grad_())),
        "head_logits": lambda t: raw.head_logits(features(t), features(t)[:1].to(wide(t))),
        "head_logits_backward": lambda t: raw.head_logits_backward(
            features(t), features(t)[:1].to(wide(t)), None, None, None, None, True, True
        ),
        "gatv2_attention": lambda t: halfgnn.ops.gatv2_attention(g, features(t), features(t), features(t)[0]),
        "gatv2_attention_backward": lambda t: backward(
            halfgnn.ops.gatv2_attention(g, features(t).requires_grad_(), features(t), features(t)[0])
        ),
        "dot_attention": lambda t: halfgnn.ops.dot_attention(g, features(t), features(t), features(t)),
        "dot_attention_backward": lambda t: backward(
            halfgnn.ops.dot_attention(g, features(t).requires_grad_(), features(t), features(t))
        ),
        "coo_to_csr": lambda t: raw.coo_to_csr(ids.to(t), ids.to(t), 3),
        "transpose": lambda t: raw.transpose(*(x.to(t) for x in (csr[0], csr[1])), None, 2),
        "reorder": lambda t: raw.reorder(*(x.to(t) for x in (*csc[:2], *csr[:2]))),
        "locality": lambda t: raw.locality(csc[1].to(t), 2, 1),
        "neighbor_sample": lambda t: raw.neighbor_sample(
            [csc[0].to(t)],
            [csc[1].to(t)],
            [None],
            [0],
            [0],
            [csc[1][:1].to(t)],
            [1],
            0,
            False,
            True,
            False,
            [None],
            [None],
            [None],
        ),
        "gather_rows": lambda t: raw.gather_rows(ones(2, t), csc[1], ones(3, t)),
        "gather_limit": lambda t: yardsticks.gather_limit(csc[1], ones(2, t)),
        "scalar_spmm": lambda t: yardsticks.scalar_spmm(*csc, "copy_lhs", "sum", ones(2, t), None),
        "scalar_sddmm": lambda t: yardsticks.scalar_sddmm(src, dst, "dot", ones(2, t), ones(2, t), "u", "v"),
        "naive_sum": lambda t: yardsticks.naive_sum(*of_naive, features(t), ones(3, t)[:, :2].contiguous()),
        "naive_max": lambda t: yardsticks.naive_max(*of_naive, features(t)),
        "naive_dot": lambda t: yardsticks.naive_dot(*of_naive, features(t), features(t)),
        "naive_softmax": lambda t: yardsticks.naive_softmax(of_naive[0], ones(3, t)),
        "naive_attention": lambda t: yardsticks.naive_attention(
            *of_naive, "dot", *[features(t)] * 2, None, features(t), 1.0
        ),
    }


def wide(dtype):
    """Of vectors beside features."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def backward(out):
    out.float().sum().backward()


def takes(call, dtype):
    try:
        call(dtype)
    except (TypeError, NotImplementedError):
        return False
    return True


def test_every_operator_has_its_row():
    assert set(table()) == set(SCHEMAS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_dtypes(name, device):
    call = calls(device)[name]
    is_topology = name in ("coo_to_csr", "transpose", "reorder", "locality", "neighbor_sample")
    tried = [word for word, dtype in DTYPES.items() if is_topology or dtype.is_floating_point]
    assert {word for word in tried if takes(call, DTYPES[word])} == table()[name][device]


@pytest.mark.skipif(not halfgnn.has_cuda(), reason="the library was built without its CUDA back end")
@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_registered(name):
    for device, dtypes in table()[name].items():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(SCHEMAS[name], device.upper()) == bool(dtypes)
