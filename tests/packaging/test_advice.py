"""halfgnn.advise, and python -m halfgnn advise."""

import contextlib
import copy
import importlib.util
import re
import sys
import textwrap
import time

import pytest
import torch

import halfgnn
from halfgnn import __main__ as command
from halfgnn import advice
from halfgnn.common.products import multiplies_slowly
from tests.support import SIMULATED

QUICK = dict(seconds=0.01, progress=False)
pytestmark = pytest.mark.skipif(SIMULATED, reason="about Python")


def graph():
    generator = torch.Generator().manual_seed(3)
    return torch.randn(600, 8, generator=generator), torch.randint(600, (2, 9000), generator=generator)


@pytest.fixture
def model():
    models = pytest.importorskip("torch_geometric.nn.models")
    torch.manual_seed(0)
    return models.GAT(8, 8, 2, 3, heads=2, norm="BatchNorm")


def test_a_model_of_pyg(model, tmp_path):
    x, edge_index = graph()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    found = halfgnn.advise(model, x, edge_index, **QUICK)
    names = ["torch_geometric", "halfgnn", "halfgnn, fuse=True"]
    half_names = [*names, *["the same, products='fp32'"] * multiplies_slowly(torch.bfloat16)]
    assert [(m.setting.name, m.setting.dtype) for m in found.measured] == [
        *((name, None) for name in names),
        *((name, torch.bfloat16) for name in half_names),
    ]
    assert all(m.ms > 0 and m.kept_mib > 0 and not m.error for m in found.measured)
    plain, routed, fused = found.measured[:3]
    assert routed.loss == pytest.approx(plain.loss, rel=1e-5) and fused.loss == pytest.approx(plain.loss, rel=1e-5)
    assert fused.kept_mib < plain.kept_mib and fused.stats["routed"]["fused:GATConv"] == 2
    fastest = min(found.measured, key=lambda m: m.ms)
    assert found.best.ms - fastest.ms <= max(found.best.spread_ms, fastest.spread_ms)
    assert all(0 <= m.fresh_ms < 1e3 for m in found.measured)
    text = str(found)
    assert text.count("\n") > 8 and "computed by halfgnn" in text
    assert ("    halfgnn.pyg.patch(" in text) != ("does not make this model faster" in text)
    # Nothing of the model or of the random numbers has changed.
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and torch.equal(state, torch.get_rng_state())
    pytest.importorskip("matplotlib")
    found.plot(str(tmp_path / "advice.png"))
    assert (tmp_path / "advice.png").read_bytes().startswith(b"\x89PNG")


def test_a_type_that_the_library_does_not_run_in():
    settings = [advice.Setting("DGL", None, None), advice.Setting("halfgnn", None, {})]
    settings += [advice.Setting("DGL", torch.bfloat16, None), advice.Setting("halfgnn", torch.bfloat16, {})]
    for times, ending in (
        ((8.0, 4.0, None, 2.0), "Fastest: patch(), bfloat16: 4.00 x of DGL, as it is."),
        ((8.0, 4.0, 6.0, 2.0), "Fastest: patch(), bfloat16: 3.00 x of DGL, bfloat16, 4.00 x of DGL, as it is."),
        ((8.0, 2.0, None, 4.0), "Fastest: patch(), as it is: 4.00 x of DGL, as it is."),
        ((None, 2.0, None, 4.0), "halfgnn does not make this model faster here."),
    ):
        measured = [advice.Measured(setting, ms, kept_mib=1.0, loss=1.0) for setting, ms in zip(settings, times)]
        assert ending in str(advice.Advice("DGL", measured)).splitlines()


def test_the_fastest_way_can_be_pasted():
    settings = [advice.Setting("torch_geometric", dtype, None) for dtype in (None, torch.half)]
    settings.append(advice.Setting("halfgnn", torch.half, {"fuse": True}))
    measured = [advice.Measured(setting, ms, kept_mib=1.0, loss=1.0) for setting, ms in zip(settings, (8.0, 9.0, 4.0))]
    text = str(advice.Advice("torch_geometric", measured, "cuda"))
    lines = text.splitlines()[-5:]
    compile(textwrap.dedent("\n".join(lines)), "pasted", "exec")
    assert [line.strip() for line in lines] == [
        "import torch",
        "import halfgnn.pyg",
        "halfgnn.pyg.patch(fuse=True)",
        'with torch.autocast("cuda", dtype=torch.float16):  # around the forward and the loss',
        "...",
    ]


@pytest.mark.parametrize("spread_ms, named", [(0.1, "patch(fuse=True)"), (1.0, "patch()")])
def test_ways_that_are_as_fast_within_the_spread(spread_ms, named):
    settings = [advice.Setting("torch_geometric", None, None)]
    settings += [advice.Setting("halfgnn", None, options) for options in ({}, {"fuse": True})]
    measured = [
        advice.Measured(setting, ms, spread_ms, kept_mib=1.0, loss=1.0)
        for setting, ms in zip(settings, (10.0, 4.5, 4.0))
    ]
    assert f"Fastest: {named}" in str(advice.Advice("torch_geometric", measured))


def test_modules_of_halfgnn_are_not_a_baseline():
    measured = [
        advice.Measured(advice.Setting(name, None, options), 4.0, kept_mib=1.0, loss=1.0)
        for name, options in (("torch_geometric", None), ("halfgnn", {}))
    ]
    text = str(advice.Advice("torch_geometric", measured, own=("SAGEConv",)))
    assert text.endswith("patch() does not make this model faster here: SAGEConv run on halfgnn already.")


@pytest.mark.parametrize("spread_ms, said", [(0.5, False), (3.0, True)])
def test_the_spread_of_the_steps(spread_ms, said):
    settings = advice.Setting("torch_geometric", None, None), advice.Setting("halfgnn", None, {})
    measured = [
        advice.Measured(setting, ms, spread_ms, kept_mib=1.0, loss=1.0) for setting, ms in zip(settings, (10.0, 8.0))
    ]
    text = str(advice.Advice("torch_geometric", measured))
    assert ("within the spread of the steps" in text) == said
    header, first, *_ = text.splitlines()
    assert header.split()[2] == "spread" and f"{10 * spread_ms:.0f} %" in first


@pytest.mark.parametrize(
    "products_ms, said", [(None, ""), (4.0, ""), (8.0, "80 % of torch_geometric's step"), (12.0, "100 %")]
)
def test_dense_products_limit_what_can_be_gained(products_ms, said):
    settings = advice.Setting("torch_geometric", None, None), advice.Setting("halfgnn", None, {})
    measured = [advice.Measured(setting, ms, kept_mib=1.0, loss=1.0) for setting, ms in zip(settings, (10.0, 9.0))]
    measured[0].products_ms = products_ms
    text = str(advice.Advice("torch_geometric", measured))
    assert ("dense products" in text) == bool(said) and said in text
    assert ("what it can gain to 1.2 x" in text) == (products_ms == 8.0)


def test_dense_products_are_timed():
    class Layers(torch.nn.Module):
        def __init__(self, *layers):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    x = torch.randn(20, 4, 8)
    for layers, has_products in (
        ((torch.nn.Linear(8, 8),), True),
        ((torch.nn.TransformerEncoderLayer(8, 2, 8),), True),
        ((torch.nn.LayerNorm(8), torch.nn.ReLU()), False),
    ):
        step = advice._Step(Layers(*layers), [x], {}, advice._square, None)
        assert (advice._products_ms(step, advice.Setting("torch_geometric", None, None)) > 0) == has_products
        assert advice._products_ms(step, advice.Setting("halfgnn", None, {})) is None


def test_a_picture_shows_the_ways_from_top_to_bottom(monkeypatch):
    figures = pytest.importorskip("matplotlib.figure")
    drawn = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, path: drawn.append((path, figure)))
    settings = [
        advice.Setting("DGL", None, None),
        advice.Setting("halfgnn", None, {}),
        advice.Setting("halfgnn", torch.half, {}),
    ]
    values = [(4.0, 10.0), (2.0, 5.0), (None, None)]
    measured = [advice.Measured(setting, ms, kept_mib=mib, loss=1.0) for setting, (ms, mib) in zip(settings, values)]
    advice.Advice("DGL", measured).plot("a.svg")
    ((path, figure),) = drawn
    time, memory = figure.axes
    assert path == "a.svg" and time.yaxis_inverted() and memory.yaxis_inverted()
    assert [label.get_text() for label in time.get_yticklabels()] == ["DGL, as it is", "halfgnn, as it is"]
    assert [bar.get_width() for bar in time.patches] == [4, 2] and [bar.get_width() for bar in memory.patches] == [
        10,
        5,
    ]
    upstream, ours = (bar.get_facecolor() for bar in time.patches)
    assert upstream != ours and time.get_xlabel() == "ms per step" and "MiB" in memory.get_xlabel()


def test_a_picture_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    measured = [advice.Measured(advice.Setting("DGL", None, None), 1.0, kept_mib=1.0, loss=1.0)]
    with pytest.raises(ImportError, match=r"a\.svg needs matplotlib \(pip install matplotlib\)"):
        advice.Advice("DGL", measured).plot("a.svg")


def test_the_switch_is_not_timed(model, monkeypatch):
    """A plain loop in a block of accelerate() does not pay for the block. Here to enter and leave one takes 0.2 seconds."""
    import halfgnn.pyg

    accelerate, first_steps = halfgnn.pyg.accelerate, []

    @contextlib.contextmanager
    def slowly(**options):
        with accelerate(**options):
            time.sleep(0.1)
            first_steps.append(True)  # is to come
            yield
            time.sleep(0.1)

    def loss(output):
        time.sleep(0.1 if first_steps else 0)
        first_steps.clear()
        return output.sum()

    monkeypatch.setattr(halfgnn.pyg, "accelerate", slowly)
    x, edge_index = graph()
    found = halfgnn.advise(model, x[:20], edge_index[:, :50] % 20, loss=loss, dtypes=(None,), **QUICK)
    with accelerate():
        model(x[:20], edge_index[:, :50] % 20)
        start = time.perf_counter()
        for _ in range(3):
            model(x[:20], edge_index[:, :50] % 20).sum().backward()
        loop_ms = 1e3 * (time.perf_counter() - start) / 3
    assert all(m.ms < loop_ms + 50 for m in found.measured)  # neither the switch nor the first step


@pytest.mark.parametrize("is_failing", [False, True])
def test_what_is_patched_is_suspended(model, is_failing):
    """Otherwise halfgnn would be compared with itself."""
    import halfgnn.dgl
    import halfgnn.pyg

    x, edge_index = graph()
    switches = halfgnn.pyg.drop_in.table._switch, halfgnn.dgl._switch
    seen = []

    def loss(output):
        seen.append([switch.active() for switch in switches])
        if is_failing and len(seen) == 2:
            raise KeyboardInterrupt
        return output.sum()

    halfgnn.pyg.patch(fuse=True, half=True)
    try:
        with halfgnn.pyg.accelerate(products="fp32"):
            before = [switch.active() for switch in switches]
            with pytest.raises(KeyboardInterrupt) if is_failing else contextlib.nullcontext():
                found = halfgnn.advise(model, x, edge_index, loss=loss, dtypes=(None,), **QUICK)
            assert [switch.active() for switch in switches] == before
        assert halfgnn.pyg.drop_in.table._switch.active() == {**before[0], "products": False}
    finally:
        halfgnn.pyg.unpatch()
    assert switches[0].active() is None and seen[0] == [None, None]
    if not is_failing:
        assert not found.measured[0].stats and found.measured[1].stats["routed"]


def test_dgl_is_suspended():
    pytest.importorskip("dgl")
    import halfgnn.dgl

    on = []
    model = torch.nn.Linear(2, 2)
    model.register_forward_hook(lambda *args: on.append(halfgnn.dgl._switch.active()))
    pytest.importorskip("torch_geometric")
    halfgnn.dgl.patch(fuse=True)
    try:
        halfgnn.advise(model, torch.ones(1, 2), dtypes=(None,), **QUICK)
        assert halfgnn.dgl._switch.active() == {"fuse": True, "products": False}
    finally:
        halfgnn.dgl.unpatch()
    assert set(map(str, on)) == {"None"}  # a model of torch_geometric, as far as anyone can say


def test_a_model_of_dgl():
    dgl = pytest.importorskip("dgl")
    import dgl.nn as dglnn

    x, (src, dst) = graph()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = dglnn.GATConv(8, 4, 2, allow_zero_in_degree=True)

        def forward(self, g, x):
            return {"out": self.conv(g, x)}

    found = halfgnn.advise(Model(), dgl.graph((src, dst), num_nodes=600), x, **QUICK)
    assert found.library == "DGL" and found.measured[1].stats["routed"]
    # DGL refuses mixed types under autocast: a line says so, and the others are measured.
    bf16 = found.measured[3]
    assert bf16.ms is None and "does not run: DGLError" in bf16.error and bf16.error in str(found)
    assert found.measured[4].ms > 0


def test_what_is_left_to_the_library_has_its_reason(model):
    x, edge_index = graph()
    found = halfgnn.advise(model, x[:20], edge_index % 20, dtypes=(None,), **QUICK)
    stats = {"routed": {}, "fell_back": {"scatter": {"too small": 3}}, "advice": {"products": "slow"}}
    stats["fell_back"]["fused:GATConv"] = {"dropout": 1}
    stats["fell_back"]["message:copy_u"] = {"read by dropout": 2}
    stats["materialized"] = {"a.py:3 in f": {"read": "relu", "calls": 2, "seconds": 0.01}}
    lines = list(advice.reasons(stats, found.library))
    assert lines == [
        "computed by halfgnn: nothing",
        "left to torch_geometric: scatter 3: too small",
        "not one fused operator, but step by step (steps are counted under their own names): GATConv 1: dropout",
        "materialized in memory, then reduced: copy_u 2: read by dropout",
        "messages materialized at a.py:3 in f, by relu: 2 times, 10.0 ms",
        "try products: slow",
    ]


def test_a_loss_and_named_arguments(model):
    x, edge_index = graph()
    calls = []

    def loss(output):
        calls.append(output.shape)
        return output.sum() * 0 + 2.5

    found = halfgnn.advise(model, x, edge_index=edge_index, loss=loss, dtypes=(None,), **QUICK)
    assert {m.loss for m in found.measured} == {2.5} and set(calls) == {(600, 3)}


def test_wrong_arguments(model):
    x, edge_index = graph()
    with pytest.raises(TypeError, match=r"model is function; expected a torch\.nn\.Module"):
        halfgnn.advise(test_wrong_arguments, x)
    with pytest.raises(ValueError, match="seconds is 0; expected a positive number"):
        halfgnn.advise(model, x, edge_index, seconds=0)
    with pytest.raises(TypeError, match="seconds is 'a'"):
        halfgnn.advise(model, x, edge_index, seconds="a")
    for dtypes in ((), (None, torch.int64), ("bf16",)):
        with pytest.raises(ValueError, match=r"dtypes is .*; expected some of None, torch.bfloat16"):
            halfgnn.advise(model, x, edge_index, dtypes=dtypes)
    with pytest.raises(TypeError, match=r"dtypes is torch\.bfloat16; expected a tuple"):
        halfgnn.advise(model, x, edge_index, dtypes=torch.bfloat16)
    with pytest.raises(TypeError, match="loss is a Tensor; expected a function"):
        halfgnn.advise(model, x, edge_index, loss=x)
    with pytest.raises(ValueError, match="the model does not run: TypeError"):
        halfgnn.advise(model, x, **QUICK)
    with pytest.raises(ValueError, match="expected floating-point tensors, or a loss"):
        halfgnn.advise(torch.nn.Identity(), edge_index, **QUICK)


PROGRAM = """
import sys
import torch
from torch_geometric.nn import SAGEConv
assert __name__ == "__main__" and sys.argv[1:] == ["--size", "3000"]
x, edge_index = torch.randn(3000, 64), torch.randint(3000, (2, 60_000))
SAGEConv(64, 8)(x, edge_index).sum().backward()
print("trained")
"""


def test_a_program(tmp_path, capfd):
    pytest.importorskip("torch_geometric")
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    picture = tmp_path / "a.svg"
    plot = ["--plot", str(picture)] if importlib.util.find_spec("matplotlib") else []
    assert command.main(["advise", *plot, str(script), "--size", "3000"]) == 0
    text = capfd.readouterr().out
    assert text.count("trained") == 2 and "s under the drop-in" in text
    plain, routed = map(int, re.search(r"at most (\d+) and (\d+) MiB", text).groups())
    assert 50 < plain < 8192 and 50 < routed < 8192  # with PyTorch in it
    assert picture.exists() == bool(plot) and (not plot or "<svg" in picture.read_text())
    assert "computed by halfgnn: gspmm:copy_u_mean 1" in text
    script.write_text("import sys; sys.exit(3)")
    assert command.main(["advise", str(script)]) == 3
    with pytest.raises(SystemExit):
        command.main(["advise", str(tmp_path / "none.py")])
    assert "expected a file" in capfd.readouterr().err


@pytest.mark.parametrize(
    "fresh_ms, plain_ms, said", [(0.5, 20.0, False), (2.0, 20.0, True), (None, 20.0, False), (2.0, 5.0, False)]
)
def test_fresh_pages_get_a_word(fresh_ms, plain_ms, said):
    settings = advice.Setting("torch_geometric", None, None), advice.Setting("halfgnn", None, {})
    measured = [
        advice.Measured(setting, ms=ms, fresh_ms=fresh_ms, kept_mib=1.0, loss=1.0)
        for setting, ms in zip(settings, (plain_ms, 10.0))
    ]
    found = advice.Advice("torch_geometric", measured)
    assert ("try halfgnn.keep_memory(): about 2 of the 10 ms" in str(found)) == said
