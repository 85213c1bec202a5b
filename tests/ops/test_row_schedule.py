"""Row schedules: what they hold, when a graph makes them, and that results have the same bits with them."""

import functools

import pytest
import torch
import torch.utils.checkpoint

from halfgnn import Graph, ops, row_schedule
from halfgnn.row_schedule import LONG_ROW_EDGES, MANY_EDGES, WINDOW_LOG2, log2_of_piece, schedules_of
from tests.support import IDTYPES, randn

raw = torch.ops.halfgnn


def graph_of(degrees: torch.Tensor, device: str = "cpu", idtype: torch.dtype = torch.int32) -> Graph:
    """Destinations of these degrees, whose sources repeat."""
    indptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0)).to(device, idtype)
    indices = (torch.arange(int(degrees.sum()), device=device) * 7919 % 211).to(idtype)
    return Graph.from_csc(indptr, indices, num_src=211)


def skewed(rows: int, num_edges: int) -> torch.Tensor:
    """Degrees by a power law, some of them 0 and some long."""
    generator = torch.Generator().manual_seed(rows)
    weight = torch.arange(1, rows + 1, dtype=torch.float64) ** -0.9
    ends = torch.multinomial(weight, num_edges, replacement=True, generator=generator)
    return torch.bincount(torch.randperm(rows, generator=generator)[ends], minlength=rows)


GRAPHS = {
    "empty rows": torch.zeros(40, dtype=torch.int64),
    "short": torch.arange(300) % 7,
    "long among short": torch.tensor([3, LONG_ROW_EDGES, 0, 2 * LONG_ROW_EDGES + 5, LONG_ROW_EDGES - 1, 1, 600] * 3),
    "skewed": skewed(6000, 9000),
    "short pieces": skewed(5000, MANY_EDGES),
}


@pytest.mark.parametrize("idtype", IDTYPES)
@pytest.mark.parametrize("name", GRAPHS)
def test_what_a_schedule_holds(name, idtype, device):
    g = graph_of(GRAPHS[name], device, idtype)
    degrees, piece = GRAPHS[name], 1 << log2_of_piece(g.num_edges)
    schedule = row_schedule.row_schedule(g.csc().indptr, g.num_edges)
    assert schedule.dtype == torch.int32 and schedule.device == g.device
    slots, *rest = _parts(schedule.cpu(), len(degrees))
    rows_of_pieces, short = rest
    starts = torch.nn.functional.pad(degrees.cumsum(0), (1, 0))
    pieces = [
        (slot, row)
        for row in (degrees >= piece).nonzero().flatten().tolist()
        for slot in range(-(-int(starts[row]) // piece), (int(starts[row + 1]) - 1) // piece + 1)
    ]
    assert slots.tolist() == [slot for slot, _ in pieces] + [-1] * (len(slots) - len(pieces))
    assert rows_of_pieces[: len(pieces)].tolist() == [row for _, row in pieces]
    count = int((degrees < piece).sum())
    assert sorted(short[:count].tolist()) == (degrees < piece).nonzero().flatten().tolist()
    assert (short[count:] == -1).all()
    order = [(row >> WINDOW_LOG2, -int(degrees[row])) for row in short[:count].tolist()]
    assert order == sorted(order)


def _parts(schedule: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    slots = (len(schedule) - rows) // 2
    return schedule.split([slots, slots, rows])


CALLS = {
    "copy_lhs": ("sum", (24,), None, torch.float16),
    "mul": ("mean", (8,), (1,), torch.bfloat16),
    "mul of heads": ("sum", (3, 4), (3, 1), torch.float32),
    "copy_rhs": ("mean", None, (5,), torch.float16),
    "copy_lhs of maxima": ("max", (8,), None, torch.float16),
    "copy_rhs of minima": ("min", None, (3,), torch.float32),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", GRAPHS)
def test_same_bits(name, call, device):
    """Also if rows are wrongly said to be short."""
    reduce, lhs, rhs, dtype = CALLS[call]
    for short_rows, idtype in ((False, torch.int64 if rhs else torch.int32), (True, torch.int32)):
        if short_rows and "long" not in name:
            continue
        g = graph_of(GRAPHS[name], device, idtype)
        schedule = row_schedule.row_schedule(g.csc().indptr, g.num_edges, short_rows)
        x = None if lhs is None else randn(g.num_src, *lhs, dtype=dtype, device=device)
        y = None if rhs is None else randn(g.num_edges, *rhs, dtype=dtype, device=device)
        without, with_one = (
            raw.gspmm(*g.csc(), call.split()[0], reduce, x, y, None, short_rows, True, taken)
            for taken in (None, schedule)
        )
        assert all(torch.equal(got, expected) for got, expected in zip(with_one, without)), short_rows


@pytest.mark.parametrize("name", GRAPHS)
def test_same_bits_of_gradients(name, device):
    """Of the features of a weighted sum: a sum over out-edges."""
    g = graph_of(GRAPHS[name], device).reverse()
    schedule = row_schedule.row_schedule(g.csr().indptr, g.num_edges)
    for heads, dim, dtype in ((1, 16, torch.float16), (2, 3, torch.float32)):
        x = randn(g.num_src, heads, dim, dtype=dtype, device=device)
        w = randn(g.num_edges, heads, 1, dtype=dtype, device=device)
        grad = randn(g.num_dst, heads, dim, dtype=dtype, device=device)
        call = [*g.csr(), g.csc().indptr, True, "mul", "mean", grad, x, w, None, x.shape, w.shape, dtype, dtype]
        call += [True, False, False, None, None]
        without, with_one = (raw.gspmm_backward(*call, taken)[0] for taken in (None, schedule))
        assert torch.equal(with_one, without), (heads, dim)


GATS = [
    (1, 16, torch.float16, False),
    (2, 8, torch.bfloat16, True),
    (3, 4, torch.float32, False),
    (1, 3, torch.float16, True),
]


@pytest.mark.parametrize("heads,dim,dtype,has_edges", GATS)
@pytest.mark.parametrize("name", GRAPHS)
def test_same_bits_of_gat(name, heads, dim, dtype, has_edges, device):
    """Forward and backward, with logits of edges and their gradients, entries dropped."""
    g = graph_of(GRAPHS[name], device, torch.int64 if heads == 3 else torch.int32)
    feat, upstream = (randn(rows, heads, dim, dtype=dtype, device=device) for rows in (g.num_src, g.num_dst))
    src, dst, edge = (randn(rows, heads, dtype=dtype, device=device) for rows in (g.num_src, g.num_dst, g.num_edges))
    if has_edges:
        dropped = 0.3, torch.tensor([7, 8], device=device)
    else:
        edge, dropped = None, (0.0, None)
    operands = (feat, src, dst, edge, 0.2, *dropped)
    found = []
    for schedules in ((None, None), [row_schedule.row_schedule(x.indptr, g.num_edges) for x in (g.csc(), g.csr())]):
        results = raw.gat_attention(*g.csc(), *operands, True, True, False, schedules[0])
        gradients = [
            raw.gat_attention_backward(*g.csr(), *operands, upstream, *results, need_edge, False, schedules[1])
            for need_edge in {False, has_edges}
        ]
        found.append([*results, *(x for of in gradients for x in of)])
    assert all(torch.equal(got, expected) for got, expected in zip(*found, strict=True))


@pytest.mark.parametrize(
    "change,error",
    [
        (lambda s: s.long(), "schedule has dtype torch.int64"),
        (lambda s: s[None], "schedule has shape"),
        (lambda s: s.repeat(2)[::2], "schedule is not contiguous"),
    ],
)
def test_errors(change, error):
    g = graph_of(GRAPHS["short"])
    schedule = change(row_schedule.row_schedule(g.csc().indptr, g.num_edges))
    with pytest.raises((TypeError, ValueError, RuntimeError), match=error):
        raw.gspmm(
            *g.csc(), "copy_lhs", "sum", randn(g.num_src, 4, dtype=torch.float16), None, None, False, False, schedule
        )


@pytest.fixture
def everywhere(monkeypatch):
    """Schedules for graphs of any size, on any device."""
    monkeypatch.setattr(row_schedule, "scheduled_device", lambda device: True)
    monkeypatch.setattr(row_schedule, "MIN_EDGES", 0)


def test_made_at_a_later_use(everywhere):
    g = graph_of(GRAPHS["short"])
    found = [schedules_of(g, reads_csr=k > 0) for k in range(4)]
    assert [csc is None for csc, _ in found] == [True, True, False, False]
    assert [csr is None for _, csr in found] == [True, True, True, False]
    assert found[2][0] is found[3][0]
    assert torch.equal(found[3][0], row_schedule.row_schedule(g.csc().indptr, g.num_edges))
    assert torch.equal(found[3][1], row_schedule.row_schedule(g.csr().indptr, g.num_edges))


def test_not_for_other_graphs():
    g = graph_of(GRAPHS["short"])
    assert [schedules_of(g, True) for _ in range(4)] == [(None, None)] * 4


@pytest.mark.parametrize("name", ["u_mul_e_sum", "gat_attention"])
def test_training_has_the_same_bits(name, everywhere):
    """Whichever step makes the schedules; also if a checkpoint's second forward does."""
    g = graph_of(GRAPHS["skewed"])
    shapes = {
        "u_mul_e_sum": [(g.num_src, 8), (g.num_edges, 1)],
        "gat_attention": [(g.num_src, 2, 8), (g.num_src, 2), (g.num_dst, 2)],
    }[name]
    given = [randn(*shape, dtype=torch.float16) for shape in shapes]
    operator = functools.partial(getattr(ops, name), g)
    results = []
    for step in range(4):
        operands = [x.clone().requires_grad_() for x in given]
        keeps = step != 1
        out = (
            operator(*operands)
            if keeps
            else torch.utils.checkpoint.checkpoint(operator, *operands, use_reentrant=False)
        )
        results.append([out, *torch.autograd.grad(out, operands, torch.ones_like(out))])
    for result in results[1:]:
        assert all(torch.equal(got, expected) for got, expected in zip(result, results[0]))
