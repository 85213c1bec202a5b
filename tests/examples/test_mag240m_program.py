"""examples/mag240m/train.py: learning, both libraries' kernels, prefetching, several processes, options, errors."""

import csv
import os

import datasets
import pytest
import torch
from mag240m import train
from mag240m.batches import SampledBatches, Workers
from mag240m.data import load, make_synthetic
from mag240m.options import parse

from tests import support_processes
from tests.examples.mag240m_support import EXACT, SMALL, check_close, trainer


def first_gradients(own):
    batch = next(iter(own.prefetched(own.data.train, own.args.fanouts, own.args.batch_size)))
    blocks, feats, labels, _, weight = batch
    own.model.train()
    own.gradients(blocks, feats, labels, weight)
    return {name: parameter.grad.clone() for name, parameter in own.model.named_parameters()}


# ---- the program -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_it_learns(dtype, tmp_path):
    folder = make_synthetic(tmp_path / "data", 0.0003, 0, num_features=32, num_classes=5)
    options = ["--dtype", dtype, "--lr", "0.01", "--norm", "layer", "--dropout", "0.1", "--batch-size", "40"]
    own = trainer(folder, *options)
    for _ in range(4):
        own.train_epoch()
        own.progress.epoch, own.progress.step = own.progress.epoch + 1, 0
    assert own.progress.losses[-1] < 0.93 * own.progress.losses[0]


def test_rows_and_profile(graph_folder, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    accuracy = train.main(["--data", str(graph_folder), *SMALL, "--epochs", "1", "--profile", "--rows", str(rows)])
    header, row = csv.reader(rows.read_text().splitlines())
    row = dict(zip(header, row))
    assert row["dtype"] == "bf16" and float(row["test_accuracy"]) == pytest.approx(accuracy, abs=1e-4)
    assert all(float(row[f"{phase}_ms"]) > 0 for phase in ("sample", "gather", "forward", "backward", "step", "wait"))
    assert "ms per step" in capsys.readouterr().out


def test_memory_is_logged(graph_folder, tmp_path):
    train.main(
        [
            "--data",
            str(graph_folder),
            *SMALL,
            "--epochs",
            "2",
            "--memory-log",
            str(tmp_path / "m.csv"),
            "--memory-every",
            "2",
        ]
    )
    header, *rows = csv.reader((tmp_path / "m.csv").read_text().splitlines())
    assert header[0] == "batches" and len(rows) >= 2 and all(float(row[1]) > 50 for row in rows)


def test_imdb_is_the_default():
    if datasets.packaged("imdb") is None:
        pytest.skip("the wheel is not installed")
    args = parse([])
    assert args.data == "imdb" and args.dtype == "bf16"
    assert train.main(["--device", "cpu", "--epochs", "10"]) > 0.45


def test_dgl_kernels_give_the_same_gradients(graph_folder):
    pytest.importorskip("dgl")
    ours = trainer(graph_folder, *EXACT)
    theirs = trainer(graph_folder, *EXACT, "--kernels", "dgl")
    theirs.model.load_state_dict(ours.model.state_dict())
    expected = first_gradients(theirs)
    for name, grad in first_gradients(ours).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-5)


def test_prefetching_in_a_thread_changes_nothing(graph_folder):
    plain, threaded = (
        trainer(graph_folder, *EXACT),
        trainer(graph_folder, *EXACT, "--prefetch-on-cpu", "--workers", "1"),
    )
    threaded.model.load_state_dict(plain.model.state_dict())
    for own in (plain, threaded):
        own.train_epoch()
    assert threaded.progress.losses == pytest.approx(plain.progress.losses, rel=1e-3)
    check_close(threaded.model.state_dict(), plain.model.state_dict())


def test_the_last_batch_is_shared_by_more_processes_than_it_has_seeds(graph_folder):
    ids = torch.arange(21)
    parts = []
    for rank in range(3):
        batches = SampledBatches(
            trainer(graph_folder).graph, "paper", ids, [2, 2], 20, Workers(rank, 3), torch.Generator().manual_seed(4)
        )
        assert len(batches) == 2
        parts.append([batches[i] for i in range(2)])
    seeds = torch.cat([part[i][2] for part in parts for i in range(2) if part[i][3]])
    assert sorted(seeds.tolist()) == ids.tolist()
    assert [part[1][3] for part in parts] == [3.0, 0.0, 0.0]
    assert sum(part[0][3] for part in parts) == pytest.approx(3.0)


def test_a_last_batch_of_one_seed_is_left_out_where_statistics_need_two(graph_folder):
    own = trainer(graph_folder, "--norm", "batch", "--batch-size", str(len(load(graph_folder).train) - 1))
    assert own.train_epoch() and own.num_steps == 1
    own = trainer(graph_folder, "--norm", "layer", "--batch-size", str(len(load(graph_folder).train) - 1))
    assert own.train_epoch() and own.num_steps == 2


# ---- several processes -------------------------------------------------------------------------------------------------------


def _gradients_of_rank(rank, graph_folder, port, results, batch_size):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    # The parent process has the store, as under torchrun.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    torch.set_num_threads(1)
    own = trainer(graph_folder, *EXACT, "--batch-size", batch_size, workers=Workers.of_torchrun("cpu"))
    torch.save(first_gradients(own), results / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(graph_folder, tmp_path):
    """For a batch that the processes do not share evenly."""
    batch_size = "7"
    expected = first_gradients(trainer(graph_folder, *EXACT, "--batch-size", batch_size))
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at a free port
    support_processes.start(_gradients_of_rank, (graph_folder, store.port, tmp_path, batch_size), 2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


# ---- errors ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fanouts", "0", "3"], "expected positive numbers, or -1"),
        (["--eval-fanouts", "3"], "1 numbers for 2 layers"),
        (["--hidden", "30"], "30 is not a multiple of --heads 4"),
        (["--resume"], "needs --checkpoint"),
        (["--kernels", "dgl", "--device", "cpu"], "no half precision on the CPU"),
        (["--features", "pinned", "--device", "cpu"], "pinned needs a GPU"),
    ],
)
def test_wrong_options(options, message, capsys):
    with pytest.raises(SystemExit):
        parse(options)
    assert message in capsys.readouterr().err


def test_a_truncated_feature_file(graph_folder, tmp_path):
    own = trainer(graph_folder)
    path = load(graph_folder).features["paper"]
    size = path.stat().st_size
    content = path.read_bytes()
    try:
        os.truncate(path, size // 2)
        with pytest.raises(RuntimeError, match="is truncated"):
            own.train_epoch()
        with pytest.raises(SystemExit, match="cannot be memory-mapped"):
            train.main(["--data", str(graph_folder), *SMALL, "--epochs", "1"])
    finally:
        path.write_bytes(content)
