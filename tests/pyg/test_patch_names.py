"""The names that patch() and accelerate() replace: which modules they search, what they find, and options that are turned off."""

from __future__ import annotations

import sys
import warnings

import pytest
import torch
from torch_geometric import utils

import halfgnn.dgl
import halfgnn.pyg
from halfgnn.drop_in import names
from tests import support

pytestmark = pytest.mark.skipif(support.SIMULATED, reason="about Python")


@pytest.fixture
def module(request):
    """A module of a program or a library, or of one of the packages whose modules are not searched again."""
    module = type(sys)(getattr(request, "param", "somebody"))
    module.scatter, module.softmax = utils.scatter, "taken"
    sys.modules[module.__name__] = module
    yield module
    sys.modules.pop(module.__name__, None)


@pytest.fixture
def searched(monkeypatch):
    """Modules that are searched, in lists per search."""
    searches = []
    search = names.Names._search
    monkeypatch.setattr(
        names.Names, "_search", lambda self, modules: (searches.append(list(modules)), search(self, modules))[1]
    )
    return searches


SETTLED = "scipy.somebody"


def test_a_block_searches_what_may_have_changed(searched, module):
    with halfgnn.pyg.accelerate():
        pass
    searched.clear()
    with halfgnn.pyg.accelerate():
        assert module.scatter is utils.scatter is not module.softmax
    found = [each for modules in searched for each in modules]  # some twice: to turn it on, and off
    assert module in found and torch.nn.functional not in found and sys.modules["torch_geometric.utils"] not in found
    assert len({*map(id, found)}) < len(sys.modules)
    halfgnn.pyg.patch()
    halfgnn.pyg.unpatch()
    again = [each for modules in searched for each in modules][len(found) :]
    assert again.count(torch.nn.functional) == 2  # once to turn it on, once to turn it off


@pytest.mark.parametrize("module", ["somebody", SETTLED, "__main__.somebody"], indirect=True)
def test_names_that_are_new(module):
    """Names that a module gets after the first search, in most modules also in place of another value."""
    originals = utils.scatter, utils.softmax
    with halfgnn.pyg.accelerate():
        assert module.scatter is utils.scatter
    assert module.scatter is originals[0]
    module.another = utils.softmax
    if module.__name__ != SETTLED:
        module.softmax = utils.softmax
    with halfgnn.pyg.accelerate():
        assert module.another is utils.softmax is not originals[1]
        assert module.softmax in ("taken", utils.softmax)
        module.third = utils.scatter
    assert (module.another, module.third) == originals[::-1] and module.softmax in ("taken", originals[1])


def test_a_function_that_a_library_caches_at_its_first_call(module):
    with halfgnn.pyg.accelerate():
        pass
    original = utils.softmax
    with halfgnn.pyg.accelerate():
        module.softmax = utils.softmax  # as many names as before
    assert module.softmax is utils.softmax is original


@pytest.mark.parametrize("module", [SETTLED], indirect=True)
def test_patch_searches_everything(module):
    with halfgnn.pyg.accelerate():
        pass
    original = module.softmax = utils.softmax  # as many names as before
    halfgnn.pyg.patch()
    try:
        assert module.softmax is utils.softmax is not original
        module.scatter, module.softmax = "taken", "by somebody"
    finally:
        halfgnn.pyg.unpatch()
    assert (module.scatter, module.softmax) == ("taken", "by somebody")


def test_a_module_that_is_gone_is_forgotten(module):
    with halfgnn.pyg.accelerate():
        del sys.modules[module.__name__]
    assert module.scatter is utils.scatter
    with halfgnn.pyg.accelerate():
        assert module.scatter is not utils.scatter
    assert not any(place is module for place in names.NAMES._places.values())


# ---- options -------------------------------------------------------------------------------------------------------------------


DROP_INS = [halfgnn.pyg, halfgnn.dgl]


@pytest.fixture(params=DROP_INS, ids=["pyg", "dgl"])
def drop_in(request):
    if request.param is halfgnn.dgl:
        pytest.importorskip("dgl")
    yield request.param
    request.param.unpatch()


def test_an_option_cannot_be_turned_off(drop_in):
    message = r"fuse=False changes nothing: .* Call unpatch\(\) first"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drop_in.patch(fuse=False)
        drop_in.patch(fuse=True)
        drop_in.patch()
        with drop_in.accelerate(fuse=True), drop_in.accelerate():
            pass
    for turn_on in (drop_in.patch, lambda **options: drop_in.accelerate(**options).__enter__()):
        with pytest.warns(UserWarning, match=message) as caught:
            turn_on(fuse=False)
        assert caught[0].filename == __file__ and len(caught) == 1
    drop_in.unpatch()


def test_an_option_of_an_open_block(drop_in):
    warns = pytest.warns(UserWarning, match="fuse=False changes nothing")
    with drop_in.accelerate(fuse=True), warns, drop_in.accelerate(fuse=False):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with drop_in.accelerate(fuse=False):
            pass


@pytest.mark.parametrize("value", ["yes", 1, 0, torch.ones(1)])
def test_values_of_options(drop_in, value):
    wrong = {"fuse": "expected None, True or False"}
    if drop_in is halfgnn.pyg:
        wrong["half"] = "expected True or False"
    for name, expected in wrong.items():
        for turn_on in (drop_in.patch, drop_in.accelerate):
            with pytest.raises(ValueError, match=f"{name} is .*; {expected}"):
                turn_on(**{name: value})
    if drop_in is halfgnn.pyg:
        with pytest.raises(ValueError, match="half is None"):
            drop_in.patch(half=None)
