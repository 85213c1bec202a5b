"""halfgnn.tiled: functions of edges on tiles of destinations, beside the same function on the whole graph."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

import halfgnn
from halfgnn.tiles import sizes
from halfgnn.tiles.sizes import bytes_of, checked_tile
from halfgnn.tiles.topology import tiles_of
from tests import support

pytestmark = pytest.mark.skipif(not support.supports("cpu", torch.float64), reason="needs float64")
N_SRC, N_DST, E, D = 30, 20, 300, 4
DTYPES = torch.float64, torch.float32
TILES = [1, 7, 64, 299, 300, 10_000, "3KiB", "auto"]


def make_graph(is_sorted=False):
    """Destination 3 has 100 edges, 0, 10 and the last one have none."""
    gen = torch.Generator().manual_seed(1)
    dst = torch.randint(1, N_DST - 1, (E,), generator=gen)
    dst[:100], dst[dst == 10] = 3, 11
    dst = dst.sort().values if is_sorted else dst
    src = torch.randint(N_SRC, (E,), generator=gen)
    return halfgnn.Graph.from_edges(src, dst, num_src=N_SRC, num_dst=N_DST)


class Block(nn.Module):
    """New features of edges and of destinations, as in a MeshGraphNet, with a softmax over the edges of a destination."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3 * D, D), nn.SiLU(), nn.Dropout(dropout), nn.Linear(D, D)).double()

    def forward(self, g, x, y, e):
        src, dst = (ids.long() for ids in g.edges())
        made = self.mlp(torch.cat([x[src], y[dst], e], -1)) + e
        weights = halfgnn.ops.edge_softmax(g, made[:, :1])
        return x.new_zeros(g.num_dst, D).index_add(0, dst, made * weights), made


def inputs(has_gradients=True):
    gen = torch.Generator().manual_seed(2)
    shapes = (N_SRC, D), (N_DST, D), (E, D)
    return [torch.randn(shape, generator=gen, dtype=torch.float64).requires_grad_(has_gradients) for shape in shapes]


def run(function, g, x, y, e, tile, returns=("dst", "edge")):
    return halfgnn.tiled(function, g, src=(x,), dst=(y,), edge=(e,), returns=returns, tile=tile)


def values(block, g, tile, is_second=False):
    torch.manual_seed(3)
    leaves = inputs()
    nodes, edges = run(block, g, *leaves, tile)
    read = [*leaves, *block.parameters()]
    loss = nodes.sin().sum() + (edges**3).sum()
    grads = torch.autograd.grad(loss, read, create_graph=is_second)
    if is_second:
        grads = *grads, *torch.autograd.grad(sum(x.square().sum() for x in grads), read)
    return [x.detach() for x in (nodes, edges, *grads)]


@pytest.mark.parametrize("is_second", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_results_and_gradients_are_those_of_the_whole(tile, is_sorted, is_second):
    torch.manual_seed(0)
    block, g = Block(), make_graph(is_sorted)
    found = values(block, g, tile, is_second)
    for actual, expected in zip(found, values(block, g, E, is_second), strict=True):
        torch.testing.assert_close(actual, expected)
    for actual, again in zip(found, values(block, g, tile, is_second)):
        assert torch.equal(actual, again)


def test_tiles_are_whole_destinations():
    tiles = tiles_of(make_graph(), 64)
    counts = [tile.graph.num_edges for tile in tiles]
    assert sum(counts) == E and sum(tile.graph.num_dst for tile in tiles) == N_DST
    assert [count for count in counts if count > 64] == [tile.graph.num_edges for tile in tiles if tile.first == 3]
    assert tiles_of(tiles[0].graph, 64)[0].first == 0


def test_every_tile_has_an_edge():
    """Functions may reshape their edges to (E, -1), and take their maximum."""
    dst = torch.tensor([2, 2, 2, 5, 5, 5, 8]).repeat_interleave(20)
    g = halfgnn.Graph.from_edges(torch.zeros_like(dst), dst, num_src=1, num_dst=12)
    for num_edges in (1, 30, 61, 139):
        tiles = tiles_of(g, num_edges)
        assert all(tile.graph.num_edges for tile in tiles) and sum(tile.graph.num_dst for tile in tiles) == 12
        assert max(tile.graph.num_edges for tile in tiles) <= max(num_edges, 60)
        assert [tile.first for tile in tiles[1:]] == [
            tiles[i].first + tiles[i].graph.num_dst for i in range(len(tiles) - 1)
        ]
    weights = torch.randn(len(dst), D)
    out = halfgnn.tiled(lambda g, e: e.view(g.num_edges, -1).amax(0).expand(g.num_dst, D), g, edge=(weights,), tile=1)
    assert out.shape == (12, D)


@pytest.mark.parametrize("tile", [16, 10_000])
def test_dropout_draws_the_same_numbers_in_the_backward(tile):
    """The gradient of a linear function of dropout's mask is its result."""
    g, (x, *_) = make_graph(), inputs()

    def dropped(g, x):
        return nn.functional.dropout(x[g.edges()[0].long()], 0.5)

    out = halfgnn.tiled(dropped, g, src=(x,), returns="edge", tile=tile)
    weights = torch.randn_like(out)
    (grad,) = torch.autograd.grad(out, x, weights)
    torch.testing.assert_close((grad * x).sum(), (out * weights).sum())


def test_what_is_kept_is_of_one_tile():
    """Nothing of the function's is kept for the backward; one row of zeros stands for gradients that have no values."""
    torch.manual_seed(0)
    block, g, leaves = Block(), make_graph(), inputs()
    kept = {}
    for tile in (16, E):
        with halfgnn.common.saved.SavedMemory(at_end=True) as saved:
            out = run(block, g, *leaves, tile)
        kept[tile] = saved.bytes
        del out
    assert kept[16] == 0 < kept[E]


@pytest.mark.parametrize("has_gradients", [False, True])
def test_each_backward_makes_a_tile_once(has_gradients):
    calls, block, g = [], Block(), make_graph()

    def counted(g, *args):
        calls.append(g.num_edges)
        return block(g, *args)

    leaves = inputs(has_gradients)
    with torch.set_grad_enabled(has_gradients):
        nodes, edges = run(counted, g, *leaves, 64)
    forward = len(calls)
    assert forward == len(tiles_of(g, 64))
    if has_gradients:
        (nodes.sum() + edges.sum()).backward()
        assert len(calls) == 2 * forward


def test_some_gradients_and_several_backwards():
    """Gradients of one leaf, of one result, twice through the same graph, and after a backward that failed."""
    torch.manual_seed(0)
    block, g, leaves = Block(), make_graph(), inputs()
    expected = run(block, g, *leaves, E)
    found = run(block, g, *leaves, 16)
    for result in (0, 1):
        for leaf in leaves:
            wanted = torch.autograd.grad(expected[result].sin().sum(), leaf, retain_graph=True)
            for _ in range(2):
                got = torch.autograd.grad(found[result].sin().sum(), leaf, retain_graph=True)
                torch.testing.assert_close(got, wanted)

    def fail(grad):
        raise ZeroDivisionError

    handle = leaves[0].register_hook(fail)
    with pytest.raises(ZeroDivisionError):
        torch.autograd.grad(found[0].sum(), leaves, retain_graph=True)
    handle.remove()
    for got, wanted in zip(*(torch.autograd.grad(x[0].sum(), leaves) for x in (found, expected))):
        torch.testing.assert_close(got, wanted)


def test_what_is_written_to_after_the_call():
    """The backward reads the values of the call, or says that it cannot."""
    torch.manual_seed(0)
    block, g, leaves = Block(), make_graph(), inputs()
    expected = torch.autograd.grad(run(block, g, *leaves, 16)[1].sin().sum(), leaves)
    copies = [x * 1 for x in leaves]
    out = run(block, g, *copies, 16)[1].sin().sum()
    for x in copies:
        x.mul_(3)
    for got, wanted in zip(torch.autograd.grad(out, leaves), expected):
        torch.testing.assert_close(got, wanted)
    out = run(block, g, *leaves, 16)[1].sin().sum()
    with torch.no_grad():
        leaves[2].mul_(3)
    with pytest.raises(RuntimeError, match=r"a tensor \(300, 4\) that tiles read was modified in place"):
        torch.autograd.grad(out, leaves)


def test_gradients_are_not_kept():
    block, g, leaves = Block(), make_graph(), inputs()
    out = run(block, g, *leaves, 16)[0].sum()
    grads = torch.autograd.grad(out, leaves, retain_graph=True)
    held = [weakref.ref(x) for x in grads]
    del grads
    assert not any(ref() is not None for ref in held)


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_features_are_freed_at_once(is_differentiated):
    """And not when Python collects cycles, which may be steps later."""
    block, g = Block(), make_graph()

    def step():
        out = run(block, g, *(x * 1 for x in inputs()), 16)[1].sum()
        if is_differentiated:
            out.backward()

    def tensors():
        return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())

    step()
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        step()
        assert tensors() == before
    finally:
        gc.enable()


def test_copies_of_a_graph():
    """Rows in dimension 1 of tensors (B, N, *)."""
    g, (x, y, e) = make_graph(), inputs(False)
    layer = nn.Linear(3 * D, D).double()

    def step(g, x, y, e):
        src, dst = (ids.long() for ids in g.edges())
        made = layer(torch.cat([x[:, src], y[:, dst], e], -1))
        return x.new_zeros(len(x), g.num_dst, D).index_add(1, dst, made)

    batch = [torch.stack([part, -part, 2 * part]).requires_grad_() for part in (x, y, e)]
    found = []
    for tile in (16, E):
        out = halfgnn.tiled(step, g, src=batch[:1], dst=batch[1:2], edge=batch[2:], tile=tile, dim=1)
        found.append([out, *torch.autograd.grad(out.sin().sum(), [*batch, *layer.parameters()])])
    for actual, expected in zip(*found):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    torch.manual_seed(0)
    block, g = Block().float(), make_graph()
    leaves = [x.detach().float().requires_grad_() for x in inputs()]
    found = []
    for tile in (16, E):
        with torch.autocast("cpu", dtype):
            nodes, edges = run(block, g, *leaves, tile)
        found.append([nodes, edges, *torch.autograd.grad(nodes.float().sum() + edges.float().sum(), leaves)])
    for actual, expected in zip(*found):
        assert actual.dtype is expected.dtype
        torch.testing.assert_close(actual, expected, rtol=5e-2, atol=5e-2)


def test_it_is_made_within_a_checkpoint():
    block, g, leaves = Block(), make_graph(), inputs()
    found = []
    for tile in (16, E):
        out = torch.utils.checkpoint.checkpoint(run, block, g, *leaves, tile, use_reentrant=False)
        found.append(torch.autograd.grad(out[0].sin().sum() + out[1].sum(), leaves))
    for actual, expected in zip(*found):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap", "forward AD"])
def test_transforms_call_the_function_once(transform):
    block, g, (x, y, e) = Block(), make_graph(), inputs(False)

    def total(function):
        return lambda x: function(block, g, x, y, e, 16)[0].sin().sum()

    def transformed(f):
        if transform == "grad":
            return torch.func.grad(f)(x)
        if transform == "vmap":
            return torch.func.vmap(f)(torch.stack([x, -x]))
        if transform == "jvp":
            return torch.func.jvp(f, (x,), (e[:N_SRC],))[1]
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(x, e[:N_SRC]))).tangent

    expected = transformed(total(lambda block, g, x, y, e, tile: plain(block, g, x, y, e)))
    torch.testing.assert_close(transformed(total(lambda *args: run(plain.__get__(args[0]), *args[1:]))), expected)


def plain(block, g, x, y, e):
    """Block without the softmax, in PyTorch's operators."""
    src, dst = (ids.long() for ids in g.edges())
    made = block.mlp(torch.cat([x[src], y[dst], e], -1)) + e
    return x.new_zeros(g.num_dst, D).index_add(0, dst, made), made


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_function_that_raises_leaves_nothing_behind(error):
    """While the error is held, as a notebook holds its last one, tensors are saved as before."""
    block, g, leaves = Block(), make_graph(), inputs()
    expected = torch.autograd.grad(run(block, g, *leaves, E)[0].sum(), leaves)

    def fail(g, *args):
        block(g, *args)
        raise error

    with pytest.raises(error) as held:
        run(fail, g, *leaves, 16)
    found = torch.autograd.grad(run(block, g, *leaves, E)[0].sum(), leaves)
    for actual, wanted in zip(found, expected):
        torch.testing.assert_close(actual, wanted)
    assert held.value is not None


@pytest.mark.parametrize("num_dst, num_edges", [(0, 0), (5, 0)])
def test_empty_graphs(num_dst, num_edges):
    ids = torch.zeros(num_edges, dtype=torch.int64)
    g = halfgnn.Graph.from_edges(ids, ids, num_src=3, num_dst=num_dst)
    x, y, e = (torch.randn(n, D, dtype=torch.float64) for n in (3, num_dst, num_edges))
    nodes, edges = run(Block(), g, x, y, e, 1)
    assert nodes.shape == (num_dst, D) and edges.shape == (num_edges, D)


def test_an_error_of_memory_says_what_to_set(monkeypatch):
    g, (x, *_) = make_graph(), inputs(False)

    def lacking(g, x):
        raise torch.OutOfMemoryError("tried to allocate 20 GiB")

    with pytest.raises(
        torch.OutOfMemoryError, match=r"tile of \d+ edges does not fit in memory: set tile to fewer edges"
    ):
        halfgnn.tiled(lacking, g, src=(x,), tile=16)
    monkeypatch.setattr(sizes, "free_memory", lambda device: 0)
    assert halfgnn.tiled(lambda g, x: x.new_zeros(g.num_dst, 1), g, src=(x,)).shape == (N_DST, 1)


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"tile": 0}, ValueError, "tile is 0; expected a number of edges of 1 or more"),
        ({"tile": 1.5}, TypeError, "tile is 1.5; expected a number of edges, a size such as"),
        ({"tile": True}, TypeError, "tile is True"),
        ({"tile": "12 parsecs"}, ValueError, "tile is '12 parsecs'; expected a number of edges"),
        ({"tile": "0MiB"}, ValueError, "tile is '0MiB'"),
        ({"tile": f"{10**400}GiB"}, ValueError, "tile is '1000"),
        ({"returns": "src"}, ValueError, "returns is 'src'; expected"),
        ({"returns": ()}, ValueError, r"returns is \(\); expected"),
        ({"returns": ("dst", "edge")}, ValueError, "function returned 1 tensors; expected 2"),
        ({"returns": "edge"}, ValueError, r"result 0 of function has shape \(\d+, 4\); expected \d+ rows .*: one for each edge"),
        ({"src": torch.zeros(N_SRC, D)}, TypeError, r"src is a Tensor; expected a tuple or list of tensors: pass src=\(x,\)"),
        ({"src": (torch.zeros(N_SRC + 1, D),)}, ValueError, r"src\[0\] has shape \(31, 4\); expected 30 rows in dimension 0"),
        ({"edge": (torch.zeros(E - 1),)}, ValueError, r"edge\[0\] has shape \(299,\); expected 300 rows"),
        ({"src": None}, TypeError, "src is a NoneType; expected a tuple or list"),
        ({"src": (x for x in ())}, TypeError, "src is a generator; expected a tuple or list"),
        ({"dim": "a"}, TypeError, "dim is 'a'; expected the dimension of rows"),
        ({"dim": 2}, ValueError, r"src\[0\] has shape \(30, 4\); expected 30 rows in dimension 2"),
        ({"returns": None}, ValueError, "returns is None; expected"),
        ({"function": 3}, TypeError, "function is 3; expected a function"),
        ({"function": lambda g, *args: None}, TypeError, "function returned a NoneType; expected a tensor"),
        ({"function": lambda g, *args: torch.zeros(3), "tile": E}, ValueError, r"shape \(3,\); expected 20 rows"),
        ({"function": lambda g, x: x[: g.num_dst, : 1 + g.num_dst % 2]}, ValueError, r"a result has shape \(\d+, \d\) and dtype"),
        ({"function": lambda g, x: x[: g.num_dst].to(DTYPES[g.num_dst % 2])}, ValueError, "torch.float32.* as on the tiles before"),
        ({"function": lambda g, x: x[: g.num_dst].to_sparse()}, TypeError, "result 0 of function has layout torch.sparse_coo"),
        ({"dst": (3,)}, TypeError, r"dst\[0\]"),
        ({"graph": 3}, TypeError, "graph is a int"),
    ],
)  # fmt: skip
def test_wrong_arguments(options, error, match):
    function = options.pop("function", lambda g, *args: torch.zeros(g.num_dst, D))
    options = {"graph": make_graph(), "src": (torch.zeros(N_SRC, D),), "tile": 16, **options}
    with pytest.raises(error, match=match):
        halfgnn.tiled(function, **options)


def test_sizes():
    assert [bytes_of(size) for size in ("1B", "2 kB", "1.5MiB", "3gb")] == [1, 2000, 3 * 2**19, 3 * 10**9]
    assert checked_tile("auto") == "auto" and checked_tile(5) == 5


def test_free_memory_that_is_not_known(monkeypatch):
    def read_text(path):
        raise FileNotFoundError(path)

    monkeypatch.setattr(sizes.Path, "read_text", read_text)
    with pytest.raises(ValueError, match='tile is "auto", and this system does not say how much memory is free'):
        sizes.free_memory(torch.device("cpu"))
