"""The examples of mini-batches: gradients of two processes, resumed and killed runs, both libraries' kernels, errors."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import heterodata
import rgat_minibatch as program
from mag240m_synthetic import synthetic

pytest.importorskip("dgl")
PROGRAM = Path(program.__file__)
SMALL = ["--device", "cpu", "--hidden", "16", "--batch-size", "20", "--fanouts", "3", "3", "--features", "file"]
# Options without random differences between runs: all neighbours, no dropout, no statistics of a batch.
EXACT = ["--fanouts", "-1", "-1", "--dropout", "0", "--norm", "layer", "--dtype", "fp32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph with MAG240M's schema, 12 features and 5 classes."""
    return synthetic(tmp_path_factory.mktemp("mag") / "data", 0.00005, 0, num_features=12, num_classes=5)


def trainer(folder, *options, workers=None):
    args = program.parse(["--data", str(folder), *SMALL, *options])
    return program.Trainer(heterodata.load(folder), args, torch.device("cpu"), workers or program.Workers())


def check_close(found, expected):
    """The states of two runs agree except for rounding. Sampling numbers nodes randomly, which changes the order of
    sums, and Adam makes a full step from a gradient of almost zero."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).float().norm() <= 0.02 * value.float().norm() + 0.02, name


def first_gradients(own):
    batch = next(iter(own.prefetched(own.data.train, own.args.fanouts, own.args.batch_size)))
    blocks, feats, labels, _, weight = batch
    own.model.train()
    own.gradients(blocks, feats, labels, weight)
    return {name: parameter.grad.clone() for name, parameter in own.model.named_parameters()}


# ---- the program -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_it_learns(dtype, tmp_path):
    folder = synthetic(tmp_path / "data", 0.0003, 0, num_features=32, num_classes=5)
    options = ["--dtype", dtype, "--lr", "0.01", "--norm", "layer", "--dropout", "0.1", "--batch-size", "40"]
    own = trainer(folder, *options)
    for _ in range(4):
        own.train_epoch()
        own.progress.epoch, own.progress.step = own.progress.epoch + 1, 0
    assert own.progress.losses[-1] < 0.93 * own.progress.losses[0]


def test_rows_and_profile(folder, tmp_path, capsys):
    rows = tmp_path / "rows.csv"
    accuracy = program.main(["--data", str(folder), *SMALL, "--epochs", "1", "--profile", "--rows", str(rows)])
    header, row = csv.reader(rows.read_text().splitlines())
    row = dict(zip(header, row))
    assert row["dtype"] == "bf16" and float(row["test_accuracy"]) == pytest.approx(accuracy, abs=1e-4)
    assert all(float(row[f"{phase}_ms"]) > 0 for phase in ("sample", "gather", "forward", "backward", "step", "wait"))
    assert "ms per step" in capsys.readouterr().out


def test_memory_is_logged(folder, tmp_path):
    program.main(
        ["--data", str(folder), *SMALL, "--epochs", "2", "--memory-log", str(tmp_path / "m.csv"), "--memory-every", "2"]
    )
    header, *rows = csv.reader((tmp_path / "m.csv").read_text().splitlines())
    assert header[0] == "batches" and len(rows) >= 2 and all(float(row[1]) > 50 for row in rows)


def test_imdb_is_the_default():
    if heterodata.datasets.packaged("imdb") is None:
        pytest.skip("the wheel is not installed")
    args = program.parse([])
    assert args.data == "imdb" and args.dtype == "bf16"
    assert program.main(["--device", "cpu", "--epochs", "10"]) > 0.45


def test_dgl_kernels_give_the_same_gradients(folder):
    ours = trainer(folder, *EXACT)
    theirs = trainer(folder, *EXACT, "--kernels", "dgl")
    theirs.model.load_state_dict(ours.model.state_dict())
    expected = first_gradients(theirs)
    for name, grad in first_gradients(ours).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-3, atol=1e-5)


def test_prefetching_in_a_thread_changes_nothing(folder):
    plain, threaded = trainer(folder, *EXACT), trainer(folder, *EXACT, "--prefetch-on-cpu", "--workers", "1")
    threaded.model.load_state_dict(plain.model.state_dict())
    for own in (plain, threaded):
        own.train_epoch()
    assert threaded.progress.losses == pytest.approx(plain.progress.losses, rel=1e-3)
    check_close(threaded.model.state_dict(), plain.model.state_dict())


def test_the_last_batch_is_shared_by_more_processes_than_it_has_seeds(folder):
    ids = torch.arange(21)
    parts = []
    for rank in range(3):
        batches = program.SampledBatches(
            trainer(folder).graph, "paper", ids, [2, 2], 20, program.Workers(rank, 3), torch.Generator().manual_seed(4)
        )
        assert len(batches) == 2
        parts.append([batches[i] for i in range(2)])
    seeds = torch.cat([part[i][2] for part in parts for i in range(2) if part[i][3]])
    assert sorted(seeds.tolist()) == ids.tolist()
    assert [part[1][3] for part in parts] == [3.0, 0.0, 0.0]
    assert sum(part[0][3] for part in parts) == pytest.approx(3.0)


def test_a_last_batch_of_one_seed_is_left_out_where_statistics_need_two(folder):
    own = trainer(folder, "--norm", "batch", "--batch-size", str(len(heterodata.load(folder).train) - 1))
    assert own.train_epoch() and own.num_steps == 1
    own = trainer(folder, "--norm", "layer", "--batch-size", str(len(heterodata.load(folder).train) - 1))
    assert own.train_epoch() and own.num_steps == 2


# ---- several processes -------------------------------------------------------------------------------------------------------


def _gradients_of_rank(rank, folder, port, results, batch_size):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    # The parent process has the store, as under torchrun.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    torch.set_num_threads(1)
    own = trainer(folder, *EXACT, "--batch-size", batch_size, workers=program.Workers.of_torchrun("cpu"))
    torch.save(first_gradients(own), results / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_have_the_gradient_of_one(folder, tmp_path):
    """For a batch that the processes do not share evenly."""
    batch_size = "7"
    expected = first_gradients(trainer(folder, *EXACT, "--batch-size", batch_size))
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # at a free port
    torch.multiprocessing.spawn(_gradients_of_rank, (folder, store.port, tmp_path, batch_size), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        for name, grad in expected.items():
            torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


# ---- checkpoints -------------------------------------------------------------------------------------------------------------


def weights(folder, checkpoint, *options):
    program.main(["--data", str(folder), *SMALL, *EXACT, "--checkpoint", str(checkpoint), *options])
    return torch.load(checkpoint / "checkpoint.pt")


def test_a_resumed_run_is_the_uninterrupted_one(folder, tmp_path):
    """Also in the middle of an epoch."""
    options = ["--average", "0.9", "--epochs", "3", "--checkpoint-every", "1"]
    expected = weights(folder, tmp_path / "whole", *options)
    steps = -(-len(heterodata.load(folder).train) // 20)

    class Killed(BaseException):
        pass

    saved = program.Saver.after_step

    def dies(self, own):
        saved(self, own)
        if own.num_steps == steps + 2:
            raise Killed

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(program.Saver, "after_step", dies)
        weights(folder, tmp_path / "part", *options)
    assert torch.load(tmp_path / "part" / "checkpoint.pt")["progress"]["step"] == 2 < steps
    found = weights(folder, tmp_path / "part", *options, "--resume")
    assert found["progress"]["epoch"] == 3
    assert found["progress"]["losses"] == pytest.approx(expected["progress"]["losses"], rel=1e-3)
    assert found["scheduler"] == expected["scheduler"]
    for part in ("model", "averaged"):
        check_close(found[part], expected[part])


def test_a_killed_run_leaves_a_whole_checkpoint(folder, tmp_path):
    command = [sys.executable, str(PROGRAM), "--data", str(folder), *SMALL]
    command += ["--epochs", "100000", "--checkpoint", str(tmp_path), "--checkpoint-every", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path, end = tmp_path / "checkpoint.pt", time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = torch.load(path)["progress"]
    program.main([*command[2:], "--resume", "--epochs", str(before["epoch"] + 1)])
    after = torch.load(path)["progress"]
    assert after["epoch"] == before["epoch"] + 1 and after["losses"][: before["epoch"]] == before["losses"]


def test_checkpoints_that_cannot_be_resumed(folder, tmp_path, capsys):
    common = ["--data", str(folder), *SMALL, "--epochs", "1", "--checkpoint", str(tmp_path)]
    for options, message in (
        (["--resume"], "there is nothing to resume"),
        ([], None),
        (["--resume", "--hidden", "32"], "was trained with --hidden 16, not 32"),
        (["--seed", "7"], "holds the checkpoint of another run: give --resume"),
    ):
        if message is None:
            program.main([*common, *options])
            continue
        with pytest.raises(SystemExit, match=message):
            program.main([*common, *options])
    path = tmp_path / "checkpoint.pt"
    for content, message in ((b"", "cannot be read"), (path.read_bytes()[:1000], "cannot be read")):
        path.write_bytes(content)
        with pytest.raises(SystemExit, match=message):
            program.main([*common, "--resume"])
    torch.save({"x": 1}, path)
    with pytest.raises(SystemExit, match="is not a checkpoint of this program"):
        program.main([*common, "--resume"])
    with pytest.raises(SystemExit, match="cannot be made"):
        program.main([*common[:-1], str(path)])
    path.write_bytes(b"x")
    with pytest.raises(SystemExit, match="cannot be read"):
        program.main([*common, "--resume"])


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
        program.parse(options)
    assert message in capsys.readouterr().err


def test_a_truncated_feature_file(folder, tmp_path):
    own = trainer(folder)
    path = heterodata.load(folder).features["paper"]
    size = path.stat().st_size
    content = path.read_bytes()
    try:
        os.truncate(path, size // 2)
        with pytest.raises(RuntimeError, match="is truncated"):
            own.train_epoch()
        with pytest.raises(SystemExit, match="cannot be memory-mapped"):
            program.main(["--data", str(folder), *SMALL, "--epochs", "1"])
    finally:
        path.write_bytes(content)


# ---- the template ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sage_learns_and_resumes(tmp_path, dtype):
    if heterodata.datasets.packaged("cora") is None:
        pytest.skip("the wheel is not installed")
    checkpoint = ["--checkpoint", str(tmp_path / "sage.pt"), "--dtype", dtype]
    sage_minibatch = pytest.importorskip("sage_minibatch")
    assert sage_minibatch.main([*checkpoint, "--epochs", "4", "--hidden", "64"]) > 0.3
    assert sage_minibatch.main([*checkpoint, "--epochs", "8", "--hidden", "64", "--resume"]) > 0.5
    assert torch.load(tmp_path / "sage.pt")["epoch"] == 7
