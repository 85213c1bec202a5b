"""DistGraph: several processes compute what one does."""

import numpy as np
import pytest
import torch

import halfgnn
from halfgnn.distributed import DistGraph, sum_gradients
from tests import support, support_processes
from tests.distributed import support_distributed as processes
from tests.distributed.support_distributed import (
    AGGREGATES,
    DTYPES,
    SHAPES,
    C,
    E,
    N,
    features,
    graph,
    labels,
    train,
    weights,
)

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about processes")


@pytest.fixture(scope="module")
def found(found_of_two):
    return found_of_two


def whole(found, key):
    """Rows of the nodes of all processes, in the order of the graph."""
    rows = torch.cat([part[key] for part in found])
    out = torch.empty_like(rows)
    out[torch.cat([part["nodes"] for part in found])] = rows
    return out


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows(found, dtype, shape):
    x, (src, _) = features(dtype, *shape or (1,)).view(N, *shape), graph().edges()
    for part in found:
        rows = part[f"rows {dtype} {shape}"]
        assert rows.dtype is dtype and torch.equal(rows[: len(part["nodes"])], x[part["nodes"]])
        assert torch.equal(rows[part["edge_index"][0]], x[src.long()[part["edge_ids"]]])


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_gradients(found, dtype):
    src, _ = graph().edges()
    parts = []  # each process rounds the gradients of its rows; their sum is rounded once
    for part in found:
        mine = torch.zeros(N, C, dtype=torch.float64)
        mine.index_add_(0, src.long()[part["edge_ids"]], weights(graph(), C)[part["edge_ids"]])
        parts.append(mine)
    limit = 8 * torch.finfo(dtype).eps * sum(mine.abs() for mine in parts)
    assert bool(((whole(found, f"gradient {dtype}").double() - sum(parts)).abs() <= limit + 1e-12).all())


def test_second_derivative(found):
    src, _ = graph().edges()
    x = features(torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad((x**3)[src.long()].sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(grad.pow(2).sum(), x)
    torch.testing.assert_close(whole(found, "second"), expected)


def test_degrees(found):
    assert torch.equal(whole(found, "in"), graph().in_degrees().long())
    assert torch.equal(whole(found, "out"), graph().out_degrees().long())


def test_bytes_sent(found):
    assert sum(part["bytes"] for part in found) == sum(part["ghosts"] for part in found) * C * 2


@pytest.mark.parametrize("case", AGGREGATES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_aggregate(found, dtype, case):
    shape, of_weight, reduce = case
    key = f"{dtype} {shape} {of_weight} {reduce}"
    x = features(dtype, *shape).double().requires_grad_()
    w = None if of_weight is None else weights(graph(), *of_weight).to(dtype).double().requires_grad_()
    op = "copy_lhs" if w is None else "mul"
    out = halfgnn.reference.gspmm(graph(), op, reduce, x, w)
    cotangent = features(torch.float64, *shape).to(dtype).double()
    grads = torch.autograd.grad(out, [x] if w is None else [x, w], cotangent)
    eps = torch.finfo(dtype).eps
    for name, expected in (("sum", out), ("of x", grads[0])):
        actual = whole(found, f"{name} {key}")
        assert actual.dtype is dtype
        assert float((actual.double() - expected).norm()) <= 4 * eps * float(expected.norm())
    if w is not None:
        actual = torch.empty_like(grads[1])
        for part in found:
            actual[part["edge_ids"]] = part[f"of w {key}"].double()
        assert float((actual - grads[1]).norm()) <= 4 * eps * float(grads[1].norm())
    width = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    assert sum(part[f"sent {key}"] for part in found) == sum(part["ghosts"] for part in found) * width


def test_rows_are_kept_for_gradients_of_weights_only(found):
    expected = graph().out_degrees().float()[:, None].expand(N, C)
    torch.testing.assert_close(whole(found, "changed"), expected)


def test_attention_by_parts(tmp_path):
    processes.write_parts(tmp_path, 3)
    processes.write_parts(tmp_path / "two", 2)
    results = processes.run(processes.attention_by_parts, tmp_path, 3)
    sums = torch.zeros(N, 1, dtype=torch.float64)
    for rank, constant in enumerate(processes.CONSTANTS):
        part = np.load(tmp_path / f"part-{rank}.npz")
        sums[torch.from_numpy(np.concatenate([part["nodes"], part["ghosts"]])).long()] += constant
    assert torch.equal(whole(results, "rounded once"), sums.half())
    in_group = [part["of group"] for part in results[1:]]
    x = features(torch.float64).requires_grad_()
    out = halfgnn.reference.gspmm(graph(), "copy_lhs", "sum", x * x[:, :1], None)
    out.sin().sum().backward()
    torch.testing.assert_close(whole(in_group, "rows"), out.detach())
    torch.testing.assert_close(whole(in_group, "gradient"), x.grad)
    for part in results:
        for a, b in zip(*part["results"], strict=True):
            assert float((a - b).norm()) <= 1e-4 * float(b.norm())
        num_edges = part["num_edges"]
        texts = [
            "a row per node of this process",
            "reduce is 'max'; expected 'sum' or 'mean'",
            "expected (num_own, *, D)",
            f"weight has shape (3, 1); expected {num_edges} rows, one per edge",
            f"weight has shape ({num_edges}, 2); expected ({num_edges}, 1), one number per row of x",
            "x has dtype torch.int64; expected a floating-point type: x.float()",
            "weight has dtype torch.int32; expected a floating-point type: weight.float()",
            "x has dtype torch.float64 and weight torch.float32; expected equal ones, or a half type and fp32",
            "values of arguments: 'x: (rows, 12) of torch.float32, without gradient; weight: None; reduce: sum' and 'x: "
            "(rows, 12) of torch.float32, without gradient; weight: (rows, 1) of torch.float32, without gradient; reduce: sum'",
            "weight: (rows, 1) of torch.float32, with a gradient",
            "reduce: mean'",
        ]
        assert len(part["errors"]) == len(texts)
        for error, text in zip(part["errors"], texts):
            assert text in error


def test_errors(found):
    expected = [
        ("x has shape ({rows}, 12); expected ({num_own}, *), a row per node of this process",) * 2,
        ("x is a list; expected a torch.Tensor",) * 2,
        ("x has layout torch.sparse_coo",) * 2,
        ("processes 0 and 1 have different values of arguments: 'x: (rows, 12) of torch.float32, without gradient' and 'x: "
         "(rows, 12) of torch.float64, without gradient'",) * 2,
        ("(rows, 12) of torch.float32, without gradient' and 'x: (rows, 11)",) * 2,
        ("without gradient' and 'x: (rows, 12) of torch.float32, with a gradient'",) * 2,
        ("values of arguments: 'x: (rows, 12) of torch.float32, with", "x has shape ({rows}, 12); expected ({num_own}, *)"),
    ]  # fmt: skip
    for rank, part in enumerate(found):
        own = len(part["nodes"])
        for actual, texts in zip(part["errors"], expected, strict=True):
            assert texts[rank].format(rows=own - 1, num_own=own) in actual
    expected = [
        ("process 1 could not read the partition: FileNotFoundError: ", "partition.json does not exist; "),
        ("process 1 could not read its part: FileNotFoundError: ", "part-1.npz"),
        ("has 2 parts; expected 1, one per process of the group", "group does not have this process"),
    ]
    for rank, part in enumerate(found):
        for actual, texts in zip(part["of load"], expected, strict=True):
            assert texts[rank] in actual


@pytest.mark.parametrize("world_size", [2, 4])
def test_training(tmp_path, world_size):
    processes.write_parts(tmp_path, world_size)
    results = processes.run(processes.trained, tmp_path, world_size)
    for kind, dtype in processes.kinds_of(world_size):
        one = train(graph(), features(), labels(), kind, dtype)
        eps = torch.finfo(dtype).eps
        for result in results:
            many = result[f"{kind} {dtype}"]
            torch.testing.assert_close(many["losses"], one["losses"], rtol=32 * eps, atol=0)
            for a, b in zip(many["gradients"], one["gradients"], strict=True):
                assert float((a - b).norm()) <= 128 * eps * float(b.norm()) + 1e-7
    for result in results:  # the same bits in all processes, and again
        for name in ("losses", "gradients", "weights"):
            pairs = zip(result["again"][name], results[0][f"gat {torch.bfloat16}"][name], strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)


def test_modules_of_torch_geometric(parts_of_two):
    pyg = pytest.importorskip("torch_geometric.nn")
    results = processes.run(processes.of_pyg, parts_of_two, 2)
    nodes = [torch.from_numpy(np.load(parts_of_two / f"part-{rank}.npz")["nodes"]).long() for rank in range(2)]
    edge_index = torch.stack(graph().edges()).long()
    for name in results[0]:
        torch.manual_seed(6)
        module = getattr(pyg, name)((C, C), 4)
        x = features().requires_grad_()
        out = module((x, x), edge_index)
        out.sin().sum().backward()
        expected = [out.detach(), x.grad, *(p.grad for p in module.parameters())]
        for result, ids in zip(results, nodes):
            for i, (a, b) in enumerate(zip(result[name], expected, strict=True)):
                atol = max(1e-4, 1e-5 * float(b.abs().max()))  # of a sum over all nodes
                torch.testing.assert_close(a, b[ids] if i < 2 else b, rtol=1e-4, atol=atol)


def test_a_process_that_ends_is_named(tmp_path):
    processes.write_parts(tmp_path, 3)
    port = processes.free_port()
    context = support_processes.context()
    started = [context.Process(target=processes.dies, args=(rank, port, tmp_path)) for rank in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join(60)
    assert [process.exitcode for process in started] == [0, 3, 0]
    for rank in (0, 2):
        error = torch.load(tmp_path / f"error-{rank}.pt")
        assert error == f"process {rank} could not exchange the shape of rows: process 1 of 3 does not answer"


def test_one_process(tmp_path):
    """A part of everything, in this process."""
    processes.write_parts(tmp_path, 1)
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group first"):
        DistGraph.load(tmp_path)
    processes.start(0, processes.free_port(), 1)
    try:
        g = DistGraph.load(tmp_path)
        assert repr(g) == f"DistGraph(process 0 of 1, num_own={N}, num_ghosts=0, num_edges={E} of {E}, device='cpu')"
        x = features()
        assert torch.equal(g.halo(x), x)
        assert g.edge_index.dtype is torch.int64 and torch.equal(torch.stack(g.graph.edges()).long(), g.edge_index)
        with pytest.raises(FileNotFoundError):
            g.features("masks")
        p = torch.nn.Parameter(torch.ones(3))
        p.sum().backward()
        unused = torch.nn.Parameter(torch.ones(2))
        for parameters in (p, [p, unused], torch.nn.ParameterList([p, unused])):
            sum_gradients(parameters)
        assert torch.equal(p.grad, torch.ones(3)) and torch.equal(unused.grad, torch.zeros(2))
        for parameters, error in (
            (None, "NoneType"),
            (torch.nn.Linear(2, 2).named_parameters(), "tuple"),
            ([p, "p"], "str"),
        ):
            with pytest.raises(TypeError, match=f"parameters has a {error}; expected a module or its parameters"):
                sum_gradients(parameters)
        embedding = torch.nn.Embedding(3, 2, sparse=True)
        embedding(torch.tensor([1])).sum().backward()
        with pytest.raises(
            TypeError, match=r"a gradient of parameters has layout torch\.sparse_coo; expected a dense tensor"
        ):
            sum_gradients(embedding)
        processes.write_parts(tmp_path / "two", 2)
        with pytest.raises(ValueError, match="has 2 parts; expected 1, one per process of the group"):
            DistGraph.load(tmp_path / "two")
    finally:
        torch.distributed.destroy_process_group()
