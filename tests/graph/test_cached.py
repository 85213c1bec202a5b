"""Graph.cached: what is derived from a graph, is made once and cached with it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from halfgnn import Graph
from tests.graph import support_streams


@pytest.fixture
def cuda(monkeypatch):
    return support_streams.install(monkeypatch)


def graph():
    return Graph.from_edges(torch.tensor([2, 0, 1]), torch.tensor([1, 2, 0]), num_src=4, num_dst=4)


def degrees(g):
    return g.csc().indptr.diff()


def test_a_value_is_made_once_by_name_and_by_what_it_is_made_of():
    g, made = graph(), []

    def make(given):
        assert given is g
        made.append(1)
        return [len(made)]

    assert g.cached("_value", None) is None
    first = g.cached("_value", make)
    assert first == [1] and g.cached("_value", make) is first is g.cached("_value", None)
    others = [g.cached("_value", make, dtype) for dtype in (torch.float32, torch.float64)]
    assert others == [[2], [3]] and g.cached("_value", None, torch.float32) is others[0]
    assert (
        g.cached("_value", make) is first and g.cached("_other", make) == [4] and graph().cached("_value", None) is None
    )


def test_falsehood_is_a_value():
    g = graph()
    assert g.cached("_value", lambda g: False) is False
    assert g.cached("_value", lambda g: True) is False


def test_only_the_last_is_cached():
    g, types = graph(), torch.zeros(3)
    for of in ((types, 0), (types, 1)):
        assert g.cached("_last", lambda g: of, of, only_last=True) is of  # noqa: B023
    assert g.cached("_last", None, (types, 0)) is None and g.cached("_last", None, (types, 1)) == (types, 1)
    assert g.cached("_last", None, (torch.zeros(3), 1)) is None  # a tensor is itself only


def test_an_error_caches_nothing():
    g = graph()
    with pytest.raises(ZeroDivisionError):
        g.cached("_value", lambda g: 1 // 0)
    assert g.cached("_value", None) is None


def test_what_inference_mode_makes_serves_training():
    g = graph()
    with torch.inference_mode():
        made = g.cached("_degrees", degrees)
    assert not made.is_inference() and g.cached("_degrees", None) is made


def test_copies_have_a_cache_of_their_own():
    g = graph()
    g.cached("_degrees", degrees)
    assert copy.copy(g) is g
    for other in (pickle.loads(pickle.dumps(g)), copy.deepcopy(g), g.long().int(), g.reverse()):
        assert other.cached("_degrees", None) is None


def test_other_streams_wait_for_a_tensor(cuda):
    g = graph()
    made = g.cached("_degrees", degrees)
    assert not cuda.waits
    with cuda.on(1):
        assert g.cached("_degrees", degrees) is made and g.cached("_degrees", degrees) is made
    assert len(cuda.waits_of(1)) == 1 and any(made is tensor for tensor in cuda.recorded_on(1))


def test_other_streams_wait_for_a_graph(cuda):
    g = graph()
    made = g.cached("_graph", lambda g: Graph.from_edges(*g.edges(), num_src=4, num_dst=4))
    assert not cuda.waits
    with cuda.on(1):
        g.cached("_graph", None).csc()
    assert cuda.waits_of(1) and made.csc() is g.cached("_graph", None).csc()


def test_tensors_made_in_a_capture_are_not_cached(cuda):
    g = graph()
    with cuda.capture(), pytest.warns(UserWarning, match="not cached"):
        g.cached("_degrees", degrees)
    assert g.cached("_degrees", None) is None
    with cuda.capture():
        turned = g.cached("_turned", lambda g: g.reverse(), has_tensors=False)
    assert g.cached("_turned", None) is turned


@pytest.mark.parametrize("when_traced", [False, True])
def test_compiled_code_reads_what_is_cached(when_traced):
    g, x = graph(), torch.ones(4)

    def scaled(x):
        return x * g.cached("_degrees", degrees, torch.float32, when_traced=when_traced)

    compiled = torch.compile(scaled, fullgraph=True, backend="eager")
    assert compiled(x).tolist() == [1, 1, 1, 0]
    assert (g.cached("_degrees", None, torch.float32) is not None) == when_traced
    g.cached("_degrees", lambda g: degrees(g) * 2, torch.float32)
    assert compiled(x).tolist() == [1 + (not when_traced), *[1 + (not when_traced)] * 2, 0]
