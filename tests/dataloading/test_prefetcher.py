"""Prefetcher on the CPU: the batches are right, memory is bounded, and nothing hangs. test_prefetcher_copies tests the
order of copies."""

import collections
import dataclasses
import gc
import os
import re
import subprocess
import sys
import threading
import time
import typing
import weakref
from pathlib import Path

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from halfgnn import Graph, HeteroGraph
from halfgnn.dataloading import Block, FeatureStore, Prefetcher
from halfgnn.dataloading import prefetcher as module
from halfgnn.dataloading.batch import mapped

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    name: str


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "halfgnn-prefetcher"]


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    yield
    if threads():
        gc.collect()
    assert not threads()


def numbers(count, log=None):
    for i in range(count):
        if log is not None:
            log.append(i)
        yield torch.full((3,), i)


BACKGROUND = pytest.mark.parametrize("background", [False, True], ids=["inline", "thread"])


# ---- what arrives ------------------------------------------------------------------------------------------------------------


@BACKGROUND
def test_all_batches_in_order_and_again(background):
    loader = [torch.full((2,), i) for i in range(9)]
    prefetcher = Prefetcher(loader, "cpu", background=background)
    assert len(prefetcher) == 9
    for _ in range(2):
        assert [int(batch[0]) for batch in prefetcher] == list(range(9))
    assert list(Prefetcher([], "cpu", background=background)) == []


@BACKGROUND
def test_every_container(background):
    g = Graph.from_edges(torch.tensor([0, 1]), torch.tensor([1, 1]), num_src=2, num_dst=2)
    store = FeatureStore(torch.arange(12.0, dtype=torch.float16).view(6, 2))
    ids = torch.tensor([5, 0])
    batch = {
        "rows": store.rows(ids),
        "tuple": (store.rows(ids), 3, None, "text"),
        "named": Pair(torch.ones(1), [store.rows(ids)]),
        "dataclass": Batch(store.rows(ids), "a"),
        "ordered": collections.OrderedDict(a=store.rows(ids)),
        "graph": g,
        "hetero": HeteroGraph({("a", "to", "b"): g}),
        "block": Block(g, {"x": store.rows(ids)}),
    }
    (out,) = Prefetcher([batch], "cpu", background=background)
    expected = store.gather(ids)
    for found in (
        out["rows"],
        out["tuple"][0],
        out["named"].second[0],
        out["dataclass"].x,
        out["ordered"]["a"],
        out["block"].srcdata["x"],
    ):
        assert torch.equal(found, expected)
    assert out["tuple"][1:] == (3, None, "text") and isinstance(out["named"], Pair) and out["dataclass"].name == "a"
    assert isinstance(out["ordered"], collections.OrderedDict)
    assert (
        isinstance(out["graph"], Graph) and isinstance(out["hetero"], HeteroGraph) and isinstance(out["block"], Block)
    )
    assert batch["dataclass"].x.ids is ids  # the loader's own batch is unchanged


@BACKGROUND
def test_torch_geometric_data(background):
    data_module = pytest.importorskip("torch_geometric.data")
    store = FeatureStore(torch.randn(6, 2).half())
    data = data_module.Data(
        x=store.rows(torch.tensor([1, 2])), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([1])
    )
    hetero = data_module.HeteroData()
    hetero["paper"].x = store.rows(torch.tensor([3]))
    hetero["paper", "cites", "paper"].edge_index = torch.zeros(2, 1, dtype=torch.long)
    out, out_hetero = next(iter(Prefetcher([(data, hetero)], "cpu", background=background)))
    assert torch.equal(out.x, store.data[[1, 2]]) and type(out) is type(data)
    assert torch.equal(out_hetero["paper"].x, store.data[[3]])
    assert not isinstance(data.x, torch.Tensor)


def test_fetch_sees_every_batch():
    store = FeatureStore(torch.arange(10))
    prefetcher = Prefetcher(numbers(4), "cpu", fetch=lambda ids: (ids, store.rows(ids)), background=True)
    assert all(torch.equal(ids, rows) for ids, rows in prefetcher)


def dgl_blocks(hetero):
    dgl = pytest.importorskip("dgl")
    ends = torch.randint(0, 40, (200,)), torch.randint(0, 40, (200,))
    edges = {("a", "x", "a"): ends, ("b", "y", "a"): ends[::-1]} if hetero else ends
    g = dgl.heterograph(edges) if hetero else dgl.graph(edges, num_nodes=40)
    g.nodes["a" if hetero else g.ntypes[0]].data["h"] = torch.randn(40, 4).half()
    sampler = dgl.dataloading.NeighborSampler([3, 2], prefetch_node_feats={"a": ["h"]} if hetero else ["h"])
    seeds = {"a": torch.arange(40)} if hetero else torch.arange(40)
    return dgl.dataloading.DataLoader(g, seeds, sampler, batch_size=8, use_prefetch_thread=False)


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
@pytest.mark.parametrize("hetero", [False, True])
def test_dgl_blocks_without_dgl(hetero):
    """What a GPU gets if DGL has no CUDA: an int32 topology that is already sorted, and the block's data."""
    loader, seen = dgl_blocks(hetero), []
    prefetcher = Prefetcher(
        loader, "cpu", background=True, convert=True, fetch=lambda batch: seen.append(batch) or batch
    )
    for _, _, blocks in prefetcher:
        for block in blocks:
            assert isinstance(block, Block)
            g = block.graph.stack().graph if hetero else block.graph
            assert g.idtype == torch.int32 and g._csc is not None and g._csr is not None and g._csc.edge_ids is None
        feat = blocks[0].srcdata["h"]
        rows = blocks[0].graph.num_src["a"] if hetero else blocks[0].graph.num_src
        assert (feat["a"] if isinstance(feat, dict) else feat).shape == (rows, 4)
    assert len(seen) == 5


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_dgl_blocks_pass_through_on_the_cpu():
    dgl = pytest.importorskip("dgl")
    for _, _, blocks in Prefetcher(dgl_blocks(False), "cpu"):
        assert all(isinstance(block, dgl.DGLGraph) for block in blocks)


# ---- bounds ------------------------------------------------------------------------------------------------------------------


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_batches_ahead(depth):
    log = []
    iterator = iter(Prefetcher(numbers(20, log), "cpu", depth=depth, background=True))
    next(iterator)
    until(lambda: len(log) == 1 + depth)
    time.sleep(0.05)
    assert len(log) == 1 + depth
    next(iterator)
    until(lambda: len(log) == 2 + depth)
    iterator.close()


def test_nothing_is_fetched_ahead_inline():
    log = []
    iterator = iter(Prefetcher(numbers(20, log), "cpu"))
    next(iterator)
    assert log == [0] and not threads()


@BACKGROUND
def test_batches_are_not_kept(background):
    refs = []

    def loader():
        for _ in range(6):
            x = torch.zeros(10)
            refs.append(weakref.ref(x))
            yield x
            del x

    for batch in Prefetcher(loader(), "cpu", background=background, depth=1):
        del batch
        gc.collect()
        assert sum(ref() is not None for ref in refs) <= 3  # one ready, one being made, the generator's own
    gc.collect()
    assert not any(ref() is not None for ref in refs)


# ---- ends --------------------------------------------------------------------------------------------------------------------


class Broken(Exception):
    pass


def breaks(after):
    yield from numbers(after)
    raise Broken("no more")


@BACKGROUND
@pytest.mark.parametrize("after", [0, 3])
def test_the_loaders_error_is_the_callers(background, after):
    seen = []
    with pytest.raises(Broken, match="no more") as caught:
        for batch in Prefetcher(breaks(after), "cpu", background=background):
            seen.append(int(batch[0]))
    assert seen == list(range(after))
    if hasattr(caught.value, "add_note"):  # since Python 3.11
        note = f"while batch {after} was made, in the thread of a halfgnn Prefetcher"
        assert getattr(caught.value, "__notes__", []) == ([note] if background else [])


@BACKGROUND
def test_errors_of_fetch_and_of_ids(background):
    def fetch(batch):
        raise Broken("fetch")

    with pytest.raises(Broken, match="fetch"):
        list(Prefetcher(numbers(3), "cpu", fetch=fetch, background=background))
    store = FeatureStore(torch.ones(2, 2))
    with pytest.raises(IndexError, match=r"ids\[0\] is 2"):
        list(Prefetcher(numbers(5), "cpu", fetch=store.rows, background=background))


def test_iteration_goes_on_after_an_error():
    prefetcher = Prefetcher(list(numbers(3)), "cpu", background=True, fetch=lambda batch: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(prefetcher)
    prefetcher.fetch = None
    assert len(list(prefetcher)) == 3


@pytest.mark.parametrize("way", ["break", "close", "with", "delete", "again"])
def test_early_exit(way):
    closed = []

    def loader():
        try:
            yield from numbers(1000)
        finally:
            closed.append(True)

    class Loader:
        def __iter__(self):
            return loader()

    prefetcher = Prefetcher(Loader(), "cpu", background=True)
    if way == "break":
        for _ in prefetcher:
            break
    elif way == "close":
        iterator = iter(prefetcher)
        next(iterator)
        prefetcher.close()
        assert list(iterator) == []
    elif way == "with":
        with prefetcher:
            iterator = iter(prefetcher)
            next(iterator)
    elif way == "again":
        iterator = iter(prefetcher)
        next(iterator)
        other = iter(prefetcher)
        assert int(next(other)[0]) == 0
        with pytest.raises(RuntimeError, match="another iteration over this Prefetcher has begun"):
            next(iterator)
        other.close()
    else:
        iterator = iter(prefetcher)
        next(iterator)
        del iterator
    gc.collect()
    until(lambda: not threads())
    assert closed == [True] * (2 if way == "again" else 1)


def test_a_loader_that_hangs_does_not_hang_the_end(monkeypatch):
    monkeypatch.setattr(module, "_JOIN", 0.2)
    release = threading.Event()

    def loader():
        yield torch.ones(1)
        release.wait(30)

    prefetcher = Prefetcher(loader(), "cpu", background=True)
    iterator = iter(prefetcher)
    next(iterator)
    with pytest.warns(UserWarning, match="is left behind"):
        prefetcher.close()
    release.set()
    until(lambda: not threads())


def run_program(code):
    """Runs in another process, so that an error there can neither end nor hang this one."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


DYING_WORKER = """
import os, signal, torch
from halfgnn.dataloading import Prefetcher

class Suicidal(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return index

# Lists: a tensor's memory is handed over in several steps, and the worker may die between two of them.
loader = torch.utils.data.DataLoader(Suicidal(), batch_size=2, num_workers=1, collate_fn=list)
try:
    list(Prefetcher(loader, "cpu", background=True))
except RuntimeError as error:
    print(error)
"""


def test_a_worker_that_dies_is_an_error():
    """PyTorch raises it in the main thread, at any point, when the signal comes."""
    assert re.search(r"DataLoader worker .* (killed|exited)", run_program(DYING_WORKER))


def test_the_end_of_the_program_is_no_crash():
    """While the thread is inside PyTorch."""
    run_program(
        "import torch\nfrom halfgnn.dataloading import FeatureStore, Prefetcher\n"
        "store = FeatureStore(torch.zeros(200_000, 64))\n"
        "ids = [torch.randint(0, 200_000, (200_000,))] * 10_000\n"
        "it = iter(Prefetcher(ids, 'cpu', fetch=store.rows, background=True, depth=100))\nnext(it)\n"
    )


def test_an_iteration_that_never_begins_has_no_thread():
    iterator = iter(Prefetcher(range(1000), "cpu", background=True))
    assert not threads()
    del iterator


def test_mappings_and_tuples_of_their_own_kind():
    class Named(tuple):
        def __new__(cls, first, second):
            return super().__new__(cls, (first, second))

    counter, named = next(iter(Prefetcher([(collections.Counter(a=3), Named(torch.ones(1), 2))], "cpu")))
    assert counter == collections.Counter(a=3) and type(named) is Named and named[1] == 2


class Halved(typing.NamedTuple("Halved", [("x", torch.Tensor), ("y", torch.Tensor)])):
    """A named tuple that is not made of its fields."""

    def __new__(cls, both):
        return super().__new__(cls, *both.chunk(2))


@pytest.mark.parametrize("batch", [
    torch.Size([2, 3]), torch.tensor([[1, 2], [4, 3]]).max(1), Halved(torch.arange(4)), (torch.ones(2), torch.Size([2])),
], ids=["Size", "return type", "named tuple", "nested"])  # fmt: skip
def test_tuples_that_are_not_made_of_their_parts(batch):
    out = mapped(batch, lambda x: x + 1)
    assert type(out) is type(batch)
    for part, before in zip(out, batch):
        assert torch.equal(part, before + 1) if isinstance(before, torch.Tensor) else part == before


@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_lengths_of_a_packed_sequence_stay_on_the_cpu(enforce_sorted):
    packed = pack_sequence([torch.ones(2), torch.ones(1)], enforce_sorted=enforce_sorted)
    out = mapped(packed, lambda x: x.to("meta"))
    assert type(out) is type(packed) and out.batch_sizes is packed.batch_sizes
    for part, before in zip(out, packed):
        assert (part is None) if before is None else part.is_meta == (before is not packed.batch_sizes)


def test_fetch_runs_without_gradients():
    w = torch.ones(3, requires_grad=True)
    for background in (False, True):
        assert not next(
            iter(Prefetcher(list(numbers(1)), "cpu", fetch=lambda x: x * w, background=background))
        ).requires_grad


def test_dgl_graphs_of_fetch_and_in_dataclasses_are_converted():
    dgl = pytest.importorskip("dgl")
    g = dgl.graph(([0, 1], [1, 0]))
    (made,) = Prefetcher([0], "cpu", convert=True, fetch=lambda batch: g)
    (held,) = Prefetcher([Batch(g, "x")], "cpu", convert=True)
    assert isinstance(made, Block) and isinstance(held.x, Block)


def test_a_thread_that_ends_without_a_word(monkeypatch):
    monkeypatch.setattr(module, "_POLL", 0.05)
    monkeypatch.setattr(module._Background, "_work", lambda self: None)
    with pytest.raises(RuntimeError, match="has ended without a batch or an error"):
        list(Prefetcher(numbers(3), "cpu", background=True))


def test_a_generator_is_iterated_over_once():
    prefetcher = Prefetcher(numbers(2), "cpu")
    assert len(list(prefetcher)) == 2
    with pytest.raises(ValueError, match="loader is a generator, which can be iterated over once"):
        iter(prefetcher)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="loader is a int"):
        Prefetcher(3, "cpu")
    with pytest.raises(TypeError, match="fetch is a str"):
        Prefetcher([], "cpu", fetch="x")
    for depth in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="expected a positive number of batches"):
            Prefetcher([], "cpu", depth=depth)
    with pytest.raises(ValueError, match="device is meta; expected the CPU or a CUDA device"):
        Prefetcher([], "meta")


def test_times_add_up():
    def loader():
        for _ in range(3):
            time.sleep(0.02)
            yield torch.ones(1)

    prefetcher = Prefetcher(loader(), "cpu", fetch=lambda batch: time.sleep(0.01) or batch)
    list(prefetcher)
    assert prefetcher.times["sample"] >= 0.06 and prefetcher.times["gather"] >= 0.03
    assert prefetcher.times["wait"] >= prefetcher.times["sample"] + prefetcher.times["gather"]
