"""Plain PyTorch programs under torch.compile: the operators that their gathers and reductions become, and the same results."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn
from torch._dynamo import trace_rules
from torch._dynamo.utils import counters

import halfgnn.compiled
from halfgnn.compiled import thresholds
from halfgnn.graphs_by_tensor import edge_index, traced
from halfgnn.graphs_by_tensor.edge_index import graph_of
from tests import support
from tests.support_compiled import compiled, count_graphs, lowered

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about FX graphs")

N, E, C = 90, 700, 32


def inputs(num_nodes=N, num_edges=E, dtype=torch.float32):
    generator = torch.Generator().manual_seed(num_edges)
    x = torch.randn(num_nodes, C, generator=generator).to(dtype)
    return (
        x,
        torch.randint(num_nodes, (2, num_edges), generator=generator),
        torch.randn(num_edges, C, generator=generator),
    )


def added(x, ids, e):
    return torch.zeros_like(x).index_add(0, ids[1], x[ids[0]])


def added_in_place(x, ids, e):
    out = x.new_zeros(x.shape[0], C)
    out.index_add_(0, ids[1], torch.index_select(x, 0, ids[0]) * e[:, :1])
    return out * 2


def added_to(x, ids, e):
    return torch.index_add(x, 0, ids[1], x[ids[0]])


def scattered(x, ids, e):
    src, dst = ids
    rows = nn.functional.embedding(src, x) + e
    return x.new_zeros(x.shape).scatter_add_(0, dst.unsqueeze(-1).expand(-1, C), rows)


def scattered_by_copies(x, ids, e):
    """An index that is repeated for every column, in memory of its own."""
    rows = x[ids[0]] * e
    return torch.zeros_like(x).scatter_add(0, ids[1].unsqueeze(1).repeat(1, C), rows)


def averaged(x, ids, e):
    rows, index = x[ids[0]], ids[1].view(-1, 1).expand_as(e)
    total = torch.zeros_like(x).scatter_add(0, index, rows)
    count = x.new_zeros(x.shape[0]).scatter_add_(0, ids[1], torch.ones_like(e[:, 0]))
    return total / count.clamp(min=1).view(-1, 1)


def highest(x, ids, e):
    rows = (x[ids[0]] - x[ids[1]]).relu()
    return torch.zeros_like(x).scatter_reduce(0, ids[1][:, None].expand(-1, C), rows, "amax", include_self=False)


def attended(x, ids, e):
    """Dot attention, as it is written by hand."""
    scores = (x[ids[1]] * x[ids[0]]).sum(-1, keepdim=True) / 8
    index = ids[1].view(-1, 1)
    top = x.new_zeros(x.shape[0], 1).scatter_reduce(0, index, scores.detach(), "amax", include_self=False)
    weights = (scores - top[ids[1]]).exp()
    total = x.new_zeros(x.shape[0], 1).scatter_add(0, index, weights) + 1e-16
    return torch.zeros_like(x).index_add(0, ids[1], weights / total[ids[1]] * x[ids[0]])


def attended_in_place(x, ids, e):
    """The logits become the weights."""
    scores = (x[ids[1]] * x[ids[0]]).sum(-1, keepdim=True).detach() / 8
    index = ids[1].view(-1, 1)
    top = x.new_zeros(x.shape[0], 1).scatter_reduce(0, index, scores, "amax", include_self=False)
    weights = scores.sub_(top[ids[1]]).exp_()
    total = x.new_zeros(x.shape[0], 1).scatter_add(0, index, weights) + 1e-16
    return torch.zeros_like(x).index_add(0, ids[1], weights / total[ids[1]] * x[ids[0]])


def attended_before_a_write(x, ids, e):
    scores = (x[ids[1]] * x[ids[0]]).sum(-1, keepdim=True).detach() / 8
    index = ids[1].view(-1, 1)
    top = x.new_zeros(x.shape[0], 1).scatter_reduce(0, index, scores, "amax", include_self=False)
    weights = (scores - top[ids[1]]).exp()
    scores.mul_(5)
    total = x.new_zeros(x.shape[0], 1).scatter_add(0, index, weights) + 1e-16
    return torch.zeros_like(x).index_add(0, ids[1], weights / total[ids[1]] * x[ids[0]])


def modified(x, ids, e):
    """Features that are modified in place before their rows are reduced."""
    x = x * 1
    rows = x[ids[0]]
    x.mul_(3)
    return torch.zeros_like(x).index_add(0, ids[1], rows) + x


def modified_rows(x, ids, e):
    rows = x[ids[0]]
    rows.mul_(e)
    return torch.zeros_like(x).index_add(0, ids[1], rows)


def modified_ids(x, ids, e):
    ids = ids.clone()
    rows = x.detach()[ids[0]] + e
    ids.add_(1).remainder_(x.shape[0])
    return torch.zeros_like(x).index_add(0, ids[1], rows)


def of_three(x, ids, e):
    """The middle dimension has the edges."""
    x = x.view(x.shape[0], 2, 16).transpose(0, 1)
    out = x.new_zeros(x.shape).index_add(1, ids[1], x.index_select(1, ids[0]))
    return out.transpose(0, 1).reshape(-1, C)


def without_gradients(x, ids, e):
    with torch.no_grad():
        scale = torch.zeros_like(x).index_add(0, ids[1], x[ids[0]])
    return x * scale


def spread(x, ids, e):
    """Aggregations of the same rows, as torch_geometric makes them of a mean, an extreme and a standard deviation."""
    rows, index = x[ids[0]] * e, ids[1].view(-1, 1).expand_as(e)
    count = x.new_zeros(x.shape[0]).index_add(0, ids[1], x.new_ones(ids.shape[1])).clamp(min=1).view(-1, 1)
    mean, squares = (x.new_zeros(x.shape).scatter_add(0, index, y) / count for y in (rows, rows * rows))
    most = x.new_zeros(x.shape).scatter_reduce(0, index, rows, "amax", include_self=False)
    return torch.cat([mean, most, (squares - mean * mean).clamp(min=1e-2).sqrt()], -1)


def of_both_ends(x, ids, e):
    """What one end adds is added to the results."""
    rows = nn.functional.linear(torch.cat([x[ids[1]], x[ids[0]]], -1), e[:16].repeat(1, 2) / 8)
    index = ids[1].view(-1, 1).expand_as(rows)
    total = rows.new_zeros(x.shape[0], 16).scatter_add(0, index, rows)
    least = rows.new_zeros(x.shape[0], 16).scatter_reduce(0, index, rows, "amin", include_self=False)
    return torch.cat([total, least], -1)


def modified_between(x, ids, e):
    """Rows that are modified in place from one reduction to the next."""
    rows, index = x[ids[0]] * e, ids[1].view(-1, 1).expand_as(e)
    total = x.new_zeros(x.shape).scatter_add(0, index, rows)
    rows.detach().mul_(2)
    return total + x.new_zeros(x.shape).scatter_reduce(0, index, rows, "amax", include_self=False)


def squared_before(x, ids, e):
    """Rows that are modified in place after they were squared."""
    rows, index = x.detach()[ids[0]] * e.detach(), ids[1].view(-1, 1).expand_as(e)
    squares = rows * rows
    rows.mul_(2)
    total = x.new_zeros(x.shape).scatter_add(0, index, rows)
    return x * total * e.mean() + x.new_zeros(x.shape).scatter_add(0, index, squares)


def recorded_in_part(x, ids, e):
    """No gradient comes from the first of two reductions."""
    rows, index = x[ids[0]] * e, ids[1].view(-1, 1).expand_as(e)
    with torch.no_grad():
        most = x.new_zeros(x.shape).scatter_reduce(0, index, rows, "amax", include_self=False)
    return most * x.new_zeros(x.shape).scatter_add(0, index, rows)


def pooled(x, ids, e):
    return x.new_zeros(8, C).index_add(0, torch.arange(x.shape[0]) % 8, x)


def of_a_part(x, ids, e):
    """scatter_add reads as much of the rows as there are ids, and writes to the first columns."""
    index = ids[1, : ids.shape[1] // 2].view(-1, 1).expand(-1, 4)
    rows = x.detach()[ids[0]]  # PyTorch has no gradient of this
    return x + e.mean() + x.new_zeros(x.shape).scatter_add(0, index, rows)


RECTIFY = nn.LeakyReLU(0.2, inplace=True)


def rectified_in_place(x, ids, e):
    rows = x[ids[0]] + x[ids[1]]
    RECTIFY(rows)
    return torch.zeros_like(x).index_add(0, ids[1], rows * e)


def twice_in_place(x, ids, e):
    out = torch.zeros_like(x)
    out.index_add_(0, ids[1], x[ids[0]])
    first = out[:, :3]
    out.index_add_(0, ids[0], x[ids[1]])
    out += 1
    return out + first.sum()


class Network(nn.Module):
    """The layer of EGNN."""

    def __init__(self):
        super().__init__()
        self.edges, self.nodes = nn.Sequential(nn.Linear(2 * C, C), nn.SiLU(), nn.Linear(C, C)), nn.Linear(2 * C, C)

    def forward(self, x, ids, e):
        src, dst = ids
        rows = self.edges(torch.cat([x[src], x[dst]], -1))
        out = x.new_zeros(x.shape[0], C).scatter_add_(0, dst.unsqueeze(-1).expand(-1, C), rows)
        return x + self.nodes(torch.cat([x, out], -1))


PROGRAMS = {
    added: "gspmm:copy_u_sum",
    added_in_place: "gspmm:u_mul_e_sum",
    added_to: "gspmm:copy_u_sum",
    scattered_by_copies: "gspmm:u_mul_e_sum",
    scattered: "gspmm:u_add_e_sum",
    averaged: "gspmm:copy_u_sum",
    highest: "gspmm:copy_e_max",
    attended: "dot_attention",
    attended_in_place: "gspmm:copy_e_sum",
    attended_before_a_write: "gspmm:copy_e_sum",
    modified: "gspmm:copy_e_sum",
    modified_rows: "gspmm:copy_e_sum",
    modified_ids: "gspmm:copy_e_sum",
    of_three: "gspmm:copy_u_sum",
    without_gradients: "gspmm:copy_u_sum",
    spread: "copy_u_reduce:sum_max_mean_var",
    of_both_ends: "copy_u_reduce:sum_min",
    modified_between: "gspmm:copy_e_max",
    squared_before: "gspmm:copy_e_sum",
    recorded_in_part: "gspmm:u_mul_e_sum",
    pooled: "gspmm:copy_e_sum",
    of_a_part: "graphs",
    rectified_in_place: "gspmm:copy_e_sum",
    twice_in_place: "gspmm:copy_u_sum",
    Network: "linear",
}


def step(function, x, ids, e, params=()):
    x, e = x.detach().requires_grad_(), e.detach().requires_grad_()
    out = function(x, ids, e)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).to(out.dtype).view(out.shape)
    grads = torch.autograd.grad(out, (x, e, *params), cotangent, allow_unused=True)
    return [out, *grads]


def check(actual, expected, rtol=1e-5, atol=2e-5):
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program):
    function, operator = program() if isinstance(program, type) else program, PROGRAMS[program]
    params = tuple(function.parameters()) if isinstance(function, nn.Module) else ()
    run = compiled(function, fullgraph=True)
    counters.clear()
    for sizes in ((N, E), (N + 5, E + 11)):
        data = inputs(*sizes)
        check(step(run, *data, params), step(function, *data, params))
    assert halfgnn.compiled.stats().get(operator, 0) > 0, halfgnn.compiled.stats()
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("program", [added, averaged, attended, pooled], ids=lambda program: program.__name__)
def test_autocast(program):
    function = program() if isinstance(program, type) else program
    params = tuple(function.parameters()) if isinstance(function, nn.Module) else ()
    run = compiled(function)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, expected = step(run, *inputs(), params), step(function, *inputs(), params)
    for a, b in zip(actual, expected):
        assert (a is None) == (b is None) and (a is None or a.dtype is b.dtype)
    check(actual, expected, rtol=2e-2, atol=8e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype):
    x, ids, e = inputs(dtype=dtype)
    run, e = compiled(attended), e.to(dtype)
    (out, *_), (truth, *_) = step(run, x, ids, e), step(attended, x.double(), ids, e.double())
    assert out.dtype is dtype
    torch.testing.assert_close(out.double(), truth, rtol=2e-2, atol=2e-2)


def by_index(x, ids):
    return ids[1].view(-1, 1).expand(-1, C)


@pytest.mark.parametrize(
    ("reduce", "reason"),
    [
        (lambda x, ids, e: x.index_add(0, ids[1], e, alpha=0.5), "index_add: alpha"),
        (lambda x, ids, e: x.scatter_reduce(0, by_index(x, ids), e, "amax"), "scatter_reduce: include_self"),
        (lambda x, ids, e: x.scatter_reduce(0, by_index(x, ids), e, "prod"), "scatter_reduce: no such operator"),
        (lambda x, ids, e: x.scatter_add(0, ids[1].repeat(C).view(-1, C), e), "scatter_add: an index per value"),
    ],
)
def test_what_is_left_has_a_reason(reduce, reason):
    x, ids, e = inputs()
    check(step(compiled(reduce), x, ids, e), step(reduce, x, ids, e))
    assert halfgnn.compiled.stats() == {"graphs": 1, f"left alone: {reason}": 1}


def test_a_graph_is_sorted_once(monkeypatch):
    """By inputs that stay; new ones are sorted when they come, without compiling again."""
    made = count_graphs(monkeypatch)
    run, (x, ids, e) = compiled(added), inputs()
    for _ in range(3):
        step(run, x, ids, e)
    assert len(made) == 1
    ids[0, 0] = (ids[0, 0] + 1) % N
    check(step(run, x, ids, e), step(added, x, ids, e))
    assert len(made) == 2
    check(step(run, x, ids.clone(), e), step(added, x, ids, e))
    assert len(made) == 3 and halfgnn.compiled.stats()["graphs"] == 1


@pytest.mark.parametrize("is_seen_through", [False, True], ids=["as_whole", "through"])
@pytest.mark.parametrize("program", [added_in_place, scattered], ids=lambda program: program.__name__)
def test_functions_that_are_bound_to_others(program, is_seen_through, monkeypatch):
    """As torch_geometric 2.8.1 binds torch.index_select when it is imported, and the drop-in both. Dynamo sees through what is
    bound after it has looked PyTorch's functions up."""
    pytest.importorskip("torch_geometric")
    data, run = inputs(), compiled(program)
    trace_rules.clear_lru_cache()
    trace_rules.get_torch_obj_rule_map()
    with monkeypatch.context() as bindings:
        for owner, name in ((torch, "index_select"), (nn.functional, "embedding")):
            bound = functools.partial(lambda function, *args, **kwargs: function(*args, **kwargs), getattr(owner, name))
            bindings.setattr(owner, name, lambda *args, bound=bound, **kwargs: bound(*args, **kwargs))
        if not is_seen_through:
            trace_rules.clear_lru_cache()
        out = step(run, *data)
    trace_rules.clear_lru_cache()
    check(out, step(program, *data))
    assert halfgnn.compiled.stats()[PROGRAMS[program]] == 1


def test_ids_that_compiled_code_makes_are_copied():
    """Their memory gets other values, which nothing counts."""
    read = []

    def seen(gm, inputs):
        run = lowered(gm, inputs)
        read.extend(str(node.args[0].target) for node in gm.graph.nodes if "graph_side" in str(node.target))
        return run

    def made(x, ids):
        g = graph_of(ids + 0, x.shape[0], x.shape[0])  # as modules of halfgnn.pyg do
        return halfgnn.ops.copy_u_sum(g, x)

    x, ids, _ = inputs()
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(made, backend=seen, dynamic=True)(x, ids), made(x, ids))
    assert set(read) == {"halfgnn_pyg.copied_ids.default"}


def test_two_tensors_of_ids_are_one_graph(monkeypatch):
    made = count_graphs(monkeypatch, "from_edges")

    def ends(x, src, dst):
        return torch.zeros_like(x).index_add(0, dst, x[src] * 2)

    (x, (src, dst), _), run = inputs(), compiled(ends)
    for _ in range(3):
        torch.testing.assert_close(run(x, src, dst), ends(x, src, dst))
    assert len(made) == 1
    src = src.flip(0)
    torch.testing.assert_close(run(x, src, dst), ends(x, src, dst))
    assert len(made) == 2


def test_what_compiled_code_writes_to_is_not_the_cached_graph():
    x, ids, _ = inputs()
    for part in torch.ops.halfgnn_pyg.graph_side(ids, N, N, False):
        part.zero_()
    torch.testing.assert_close(compiled(added)(x, ids, x), added(x, ids, x))


@pytest.mark.parametrize("is_pair", [False, True])
def test_in_a_capture_the_graph_is_made_again_without_a_question(monkeypatch, is_pair):
    """A replay must not have the graph of other ids. The capture is simulated."""
    x, ids, _ = inputs()
    expected = torch.zeros_like(x).index_add(0, ids[1], x[ids[0]])
    run = compiled(lambda x, ids: torch.zeros_like(x).index_add(0, ids[1], x.index_select(0, ids[0])))
    given = tuple(ids) if is_pair else ids
    torch.testing.assert_close(run(x, given), expected)
    for module in (edge_index, traced):
        monkeypatch.setattr(module, "is_captured", lambda device: True)
    asked = []
    monkeypatch.setattr(torch, "aminmax", lambda *args, **kwargs: asked.append(args))
    for row in given:
        row.copy_(row.flip(0))  # a replay's copy of its inputs is not counted either
    expected = torch.zeros_like(x).index_add(0, given[1], x[given[0]])
    torch.testing.assert_close(run(x, given), expected)
    assert not asked


@pytest.mark.parametrize("row, what", [(0, r"edge_index\[0\]"), (1, r"edge_index\[1\]")])
@pytest.mark.parametrize("wrong", [-1, N])
def test_wrong_ids(row, what, wrong):
    x, ids, _ = inputs()
    run = compiled(lambda x, ids: torch.zeros_like(x).index_add(0, ids[1], x.index_select(0, ids[0])))
    run(x, ids)
    ids = ids.clone()
    ids[row, 3] = wrong
    with pytest.raises(ValueError, match=f"{what} holds {wrong}"):
        run(x, ids)


def test_negative_ids_are_those_of_the_last_rows():
    """As in x[ids], and in no other function."""

    def from_the_end(x, src, dst):
        return torch.zeros_like(x).index_add(0, dst, x[src] * 2)

    x, ids, _ = inputs()
    src, dst = (row.clone() for row in ids)
    src[:100] -= N
    for run in (
        compiled(lambda x, ids: from_the_end(x, *ids)),
        compiled(lambda x, ids: from_the_end(x, ids[0], ids[1])),
    ):
        for given in ((src, dst), torch.stack([src, dst])):
            torch.testing.assert_close(run(x, given), from_the_end(x, src, dst))
    run = compiled(lambda x, ids: torch.zeros_like(x).index_add(0, ids[1], x.index_select(0, ids[0])))
    with pytest.raises(ValueError, match=r"edge_index\[0\] holds -"):
        run(x, torch.stack([src, dst]))


def test_few_values_are_left_to_inductor(monkeypatch):
    monkeypatch.setattr(thresholds, "MESSAGE", E * C + 1)
    data = inputs()
    check(step(compiled(added), *data), step(added, *data))
    assert "gspmm:copy_u_sum" not in halfgnn.compiled.stats()
    assert halfgnn.compiled.stats()["fewer values than pay"] == 1


class TestInductor:
    """The backend itself."""

    @pytest.mark.parametrize(
        "options", [{}, {"mode": "max-autotune-no-cudagraphs"}, {"options": {"max_fusion_size": 8}}]
    )
    def test_backend(self, options):
        torch.compiler.reset()
        data = inputs()
        run = torch.compile(averaged, backend=halfgnn.compiled.backend, dynamic=True, **options)
        check(step(run, *data), step(averaged, *data))
        assert halfgnn.compiled.stats()["gspmm:copy_u_sum"] == 1

    def test_an_own_pass_of_the_program_runs_too(self):
        seen = []
        torch.compiler.reset()
        run = torch.compile(
            added, backend=halfgnn.compiled.backend, dynamic=True, options={"pre_grad_custom_pass": seen.append}
        )
        data = inputs()
        check(step(run, *data), step(added, *data))
        assert len(seen) == 1 and halfgnn.compiled.stats()["gspmm:copy_u_sum"] == 1

    def test_unknown_mode(self):
        torch.compiler.reset()
        with pytest.raises(Exception, match="mode is 'fast'; expected one of 'default', "):
            torch.compile(added, backend=halfgnn.compiled.backend, mode="fast")(*inputs())
