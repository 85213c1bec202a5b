"""examples/training.py: dgl.nn.GATConv on halfgnn's kernels learns as well as in fp32 under AMP, and the parts of the loop
work together."""

import dataclasses
import statistics

import pytest
import torch

pytest.importorskip("dgl")

import datasets
import gat_amp
import training

import halfgnn.dgl
from tests.examples.support import PLANETOID, needs_planetoid, random_data

HALF = [torch.bfloat16, torch.float16]
SEEDS = range(5)
EPOCHS = 40


@pytest.fixture(autouse=True)
def one_thread():
    """Workers of pytest-xdist share the machine, and a fixed number of threads makes runs
    repeatable."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --------------------------------------------------------------------------------- accuracy on Cora


def cora_of_frequent_words(count=600):
    """Cora with the most frequent of its 1,433 words, whose rows add up to 1 again. It trains twice as fast."""
    data = datasets.load("cora", PLANETOID)
    words = (data.features > 0).sum(0).topk(count).indices.sort().values
    features = data.features[:, words]
    features = features / features.sum(1, keepdim=True).clamp(min=1e-9)
    return dataclasses.replace(data, features=features.contiguous())


def mean_accuracy(data, dtype):
    """Mean test accuracy of the usual GAT: 8 heads of 8 units, dropout 0.6, weight decay 5e-4."""
    found = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        model = gat_amp.GAT(data.features.shape[1], 8, data.num_classes, [8, 1], 0.6, final_activation=False)
        model.layers[0].feat_drop = training.NonzeroDropout(data.features, 0.6)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=5e-4)
        scaler = training.make_scaler("cpu", dtype)
        options = dict(epochs=EPOCHS, dtype=dtype, scaler=scaler, eval_every=5)
        found.append(training.train(model, data.graph(), data, optimizer, **options).test_accuracy)
    return statistics.mean(found)


@needs_planetoid
def test_half_training_is_as_accurate_as_fp32_of_dgl():
    data = cora_of_frequent_words()
    expected = mean_accuracy(data, torch.float32)  # DGL's own kernels
    for dtype, fuse in ((torch.bfloat16, False), (torch.float16, True)):
        with halfgnn.dgl.accelerate(fuse=fuse):
            accuracy = mean_accuracy(data, dtype)
        print(f"mean test accuracy: {dtype} {accuracy:.4f}, DGL fp32 {expected:.4f}")
        assert accuracy >= 0.80, dtype
        assert abs(accuracy - expected) <= 0.01, dtype


# ------------------------------------------------------------------------- scaler, clip, accumulate


@pytest.fixture
def patched():
    halfgnn.dgl.patch()
    yield
    halfgnn.dgl.unpatch()


def small_gat(data, dropout=0.0):
    torch.manual_seed(0)
    return gat_amp.GAT(data.features.shape[1], 8, data.num_classes, [2, 1], dropout)


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def moved_by(dtype, data, dropout=0.0, **options):
    """The change of the weights in one step of plain SGD with learning rate 1: minus the gradient."""
    model = small_gat(data, dropout)
    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = training.make_scaler("cpu", dtype)
    _, skipped = training.train_step(model, data.graph(), data, optimizer, dtype=dtype, scaler=scaler, **options)
    assert not skipped
    return weights(model) - before


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_gradients_are_fp32_and_unscaled(dtype, patched):
    data = random_data()
    expected = moved_by(torch.float32, data)
    moved = moved_by(dtype, data)
    assert moved.dtype == torch.float32
    assert (moved - expected).norm() <= (0.005 if dtype == torch.float16 else 0.03) * expected.norm()


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_clipping_bounds_the_unscaled_gradient(dtype, accumulate, patched):
    data = random_data()
    free = moved_by(dtype, data, accumulate=accumulate)
    bound = 0.25 * free.norm().item()
    clipped = moved_by(dtype, data, accumulate=accumulate, clip_norm=bound)
    assert clipped.norm().item() == pytest.approx(
        bound, rel=1e-3
    )  # clipping the scaled gradients would leave almost nothing
    torch.testing.assert_close(clipped, free * 0.25, rtol=1e-3, atol=1e-6)
    loose = moved_by(dtype, data, accumulate=accumulate, clip_norm=4 * free.norm().item())
    torch.testing.assert_close(loose, free, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_accumulated_passes_are_averaged(dtype, patched):
    data = random_data()
    once = moved_by(dtype, data)
    four = moved_by(dtype, data, accumulate=4)  # without dropout, and four is exact to divide by
    torch.testing.assert_close(four, once, rtol=1e-4, atol=1e-6)


def test_accumulated_passes_differ_in_dropout(patched):
    data = random_data()
    model = small_gat(data, dropout=0.5)
    seen = []
    model.layers[0].feat_drop.register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    training.train_step(model, data.graph(), data, optimizer, dtype=torch.bfloat16, accumulate=2)
    assert len(seen) == 2
    assert not torch.equal(*seen)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_overflowing_steps_are_skipped_and_counted(clip_norm, accumulate, patched):
    data = random_data()
    model = small_gat(data)
    start = weights(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60, backoff_factor=2.0**-20)
    step = dict(dtype=torch.float16, scaler=scaler, clip_norm=clip_norm, accumulate=accumulate)
    _, skipped = training.train_step(model, data.graph(), data, optimizer, **step)
    assert skipped
    assert torch.equal(weights(model), start)
    assert scaler.get_scale() == 2.0**40
    history = training.train(model, data.graph(), data, optimizer, epochs=30, **step)
    assert 1 <= history.skipped <= 2  # at 2^40, and perhaps at 2^20
    assert weights(model).isfinite().all()
    assert history.losses[-1] < 0.8 * history.losses[0]


def test_only_fp16_makes_a_scaler(monkeypatch, patched):
    assert isinstance(training.make_scaler("cpu", torch.float16), torch.amp.GradScaler)

    def refuse(*args, **options):
        raise AssertionError("a GradScaler was made")

    monkeypatch.setattr(torch.amp, "GradScaler", refuse)
    data = random_data()
    for dtype in (torch.bfloat16, torch.float32):
        assert training.make_scaler("cpu", dtype) is None
        model = small_gat(data)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        history = training.train(model, data.graph(), data, optimizer, epochs=20, dtype=dtype)
        assert history.skipped == 0
        assert history.losses[-1] < 0.8 * history.losses[0]


def test_patience_stops_and_keeps_the_best_epoch(monkeypatch, patched):
    data = random_data()
    model = small_gat(data)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scores = iter([(0.2, 0.1), (0.5, 0.3), (0.5, 0.9), (0.4, 0.9), (0.1, 0.9), (0.9, 0.9)])
    monkeypatch.setattr(training, "accuracy", lambda *args: next(scores))
    history = training.train(model, data.graph(), data, optimizer, epochs=6, dtype=torch.bfloat16, patience=3)
    assert (len(history.losses), history.best_epoch) == (5, 1)
    assert (history.val_accuracy, history.test_accuracy) == (0.5, 0.3)
