"""Prefetcher: the order of copies, with stand-ins for torch.cuda's streams and events. tests/gpu has the same tests on
a GPU."""

import contextlib

import pytest
import torch

from halfgnn import Graph
from halfgnn.dataloading import FeatureStore, Prefetcher
from halfgnn.dataloading import prefetcher as module


class FakeCuda:
    """Stand-ins for torch.cuda's streams and events. A copy is done when something waits for it."""

    def __init__(self):
        self.log, self.current = [], "caller"

    def Stream(self, device):
        return FakeStream(self, "side")

    def device(self, device):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def current_stream(self, device):
        return FakeStream(self, self.current)

    def Event(self, enable_timing):
        return FakeEvent(self)


class FakeStream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_event(self, event):
        self.cuda.log.append(("wait", event.number))

    def wait_stream(self, other):
        self.cuda.log.append(("wait for all", self.name, other.name))


class FakeEvent:
    count = 0

    def __init__(self, cuda):
        self.cuda = cuda
        FakeEvent.count += 1
        self.number = FakeEvent.count

    def record(self, stream):
        self.cuda.log.append(("record", self.number, stream.name))

    def synchronize(self):
        self.cuda.log.append(("synchronize", self.number))

    def query(self):
        return True

    def elapsed_time(self, other):
        return 2000.0


class Owner:
    def __init__(self):
        self.times, self.num_bytes = {"transfer": 0.0, "gather": 0.0}, 0


@contextlib.contextmanager
def timed(phase):
    yield


def fake_mover(monkeypatch):
    FakeEvent.count = 0
    cuda, owner = FakeCuda(), Owner()
    mover = module._CudaMover(torch.device("meta"), owner, cuda)
    copies = []

    def copied(x):
        assert cuda.current == "side" and x.device.type == "cpu"
        copies.append(x)
        owner.num_bytes += x.numel() * x.element_size()
        return x

    monkeypatch.setattr(mover, "_copied", copied)
    return mover, cuda, owner, copies


def test_buffers_are_used_again_only_after_their_copies(monkeypatch):
    mover, cuda, owner, copies = fake_mover(monkeypatch)
    for i in range(5):
        batch, event = mover.moved((torch.full((4,), i), FeatureStore(torch.eye(3)).rows(torch.tensor([i % 3]))), timed)
        mover.received(batch, event)
    # Events of batch i: 2 i + 1 before its copies and 2 i + 2 after them.
    order = [entry[:2] for entry in cuda.log]
    for i in range(5):
        assert order.index(("record", 2 * i + 2)) < order.index(("wait", 2 * i + 2))
        if i >= 2:
            assert order.index(("synchronize", 2 * i - 2)) < order.index(("record", 2 * i + 1))
    assert all(entry[2] == "side" for entry in cuda.log if entry[0] == "record")
    pointers = [x.data_ptr() for x in copies]
    assert pointers[0:4] != pointers[4:8][::-1] and pointers[0:2] == pointers[4:6] == pointers[8:10]
    assert len(set(pointers)) == 4
    assert owner.num_bytes == 5 * (4 * 8 + 3 * 4) and owner.times["transfer"] == 10.0


def test_buffers_grow_to_the_largest_batch(monkeypatch):
    mover, _, _, copies = fake_mover(monkeypatch)
    for size in (10, 10, 100, 100, 20, 0, 100):
        mover.moved(torch.arange(size, dtype=torch.float16), timed)
        assert torch.equal(copies[-1], torch.arange(size, dtype=torch.float16))
    sizes = [slot._buffers[0].numel() for slot in mover._slots]
    assert max(sizes) <= 2 * 100 * 9 // 8 and len(mover._slots[0]._buffers) == 1


def test_a_tensor_that_is_more_than_its_values_stays_what_it_is(monkeypatch):
    geometric = pytest.importorskip("torch_geometric")
    edge_index = geometric.EdgeIndex([[0, 1, 1], [1, 0, 2]], sparse_size=(3, 3), sort_order="row")
    nested = torch.nested.as_nested_tensor([torch.ones(2), torch.ones(3)])
    mover, *_ = fake_mover(monkeypatch)
    ((moved, lists), _) = mover.moved((edge_index, nested), timed)
    assert type(moved) is geometric.EdgeIndex and moved.sort_order == edge_index.sort_order
    assert [part.tolist() for part in lists.unbind()] == [[1, 1], [1, 1, 1]]


def test_features_are_not_widened_on_the_way(monkeypatch):
    mover, _, owner, copies = fake_mover(monkeypatch)
    store = FeatureStore(torch.randn(30, 768).half())
    mover.moved(store.rows(torch.arange(20)), timed)
    assert copies[0].dtype == torch.float16 and torch.equal(copies[0], store.data[:20])
    assert owner.num_bytes == 20 * 768 * 2


@pytest.mark.parametrize("background", [False, True], ids=["inline", "thread"])
def test_what_the_caller_has_queued_comes_first(monkeypatch, background):
    """A store may still be on its way to the GPU. Without a thread this also holds for copies queued between two
    batches."""
    mover, cuda, _, copies = fake_mover(monkeypatch)
    prefetcher = Prefetcher([torch.full((2,), i) for i in range(3)], "cpu", background=background)
    monkeypatch.setattr(prefetcher, "_mover", mover)
    assert len(list(prefetcher)) == len(copies) == 3
    waits = [i for i, entry in enumerate(cuda.log) if entry == ("wait for all", "side", "caller")]
    begins = [i for i, entry in enumerate(cuda.log) if entry[0] == "record"][::2]
    if background:
        assert waits == [0]
    else:
        assert all(wait < begin for wait, begin in zip(waits, begins))
        assert all(begin < wait for wait, begin in zip(waits[1:], begins))
        assert len(waits) >= len(begins) == 3


def test_memory_of_a_batch_is_held_for_the_callers_stream(monkeypatch):
    """The memory was allocated on the side stream, which must not use it again while the caller's stream reads it."""
    mover, cuda, _, _ = fake_mover(monkeypatch)
    held = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda x, stream: held.append((x, stream.name, list(cuda.log))))
    x, y = torch.empty(3, device="meta"), torch.empty(4, device="meta")
    g = Graph.from_edges(torch.tensor([0, 1]), torch.tensor([1, 1]), num_src=2, num_dst=2, sort=True)[0].to("meta")
    mover.received({"x": x, "more": [y, torch.ones(2)], "graph": g}, cuda.Event(True))
    indptr, indices, _ = g.csc()
    assert {id(tensor) for tensor, *_ in held} == {id(tensor) for tensor in (x, y, indptr, indices)}
    assert all(rest == ["caller", [("wait", 1)]] for _, *rest in held)
