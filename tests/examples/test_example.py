"""examples/gat_amp.py as a program, its arguments, its measurements and its data sets."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

dgl = pytest.importorskip("dgl")
ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples" / "gat_amp.py"
sys.path.insert(0, str(PROGRAM.parent))

import datasets  # noqa: E402
import gat_amp  # noqa: E402

PLANETOID = Path(os.environ.get("HALFGNN_DATA") or ROOT.parent / "shared" / "data" / "planetoid")
has_planetoid = datasets.planetoid_folder("cora", PLANETOID) is not None
has_packaged = datasets.packaged_cora() is not None
needs_cora = pytest.mark.skipif(
    not (has_planetoid or has_packaged),
    reason="no Cora: no Planetoid folder in HALFGNN_DATA, no graphdatascience wheel with pyarrow",
)
needs_planetoid = pytest.mark.skipif(not has_planetoid, reason="no Planetoid folder in HALFGNN_DATA")
needs_packaged = pytest.mark.skipif(not has_packaged, reason="the graphdatascience wheel or pyarrow is not installed")


# -------------------------------------------------------------------------------------- the program


def run_program(*arguments):
    environment = {key: value for key, value in os.environ.items() if key != "HALFGNN_DATA"}
    if has_planetoid:
        environment["HALFGNN_DATA"] = str(PLANETOID)
    environment["OMP_NUM_THREADS"] = "1"
    path = [str(ROOT), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in path if entry)
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


ROW = re.compile(
    r"^(?P<run>\w+ \w+ cpu) +(?P<first>[\d.]+) -> (?P<last>[\d.]+) +(?P<val>[\d.]+)"
    r" +(?P<test>[\d.]+) +(?P<ms>[\d.]+) +(?P<matmul>[\d.]+) +(?P<mib>[\d.]+) +(?P<skipped>\d+)$",
    re.MULTILINE,
)


def table_rows(text):
    return {row["run"]: {key: float(row[key]) for key in row.groupdict() if key != "run"} for row in ROW.finditer(text)}


@needs_cora
@pytest.mark.parametrize(
    "options",
    [
        ["--dtype", "bf16"],
        [
            "--dtype",
            "fp16",
            "--clip-norm",
            "1.0",
            "--accumulate",
            "2",
            "--heads",
            "2",
            "1",
            "--dropout",
            "0.1",
        ],
        ["--dtype", "fp32", "--heads", "1", "--layers", "2", "--accumulate", "2"],
    ],
    ids=lambda options: options[1],
)
def test_both_backends_train_and_are_compared(options, tmp_path):
    picture = tmp_path / "made" / "loss.png"
    common = [
        "--dataset",
        "cora",
        "--backend",
        "both",
        "--device",
        "cpu",
        "--epochs",
        "3",
        "--hidden",
        "32",
    ]
    done = run_program(*common, *options, "--out", picture)
    assert done.returncode == 0, done.stderr
    dtype = options[1]
    rows = table_rows(done.stdout)
    assert list(rows) == ["dgl fp32 cpu", f"halfgnn {dtype} cpu"]
    for row in rows.values():
        assert row["last"] < row["first"]
        assert row["skipped"] == 0
        assert 0 < row["test"] <= 1
        assert row["ms"] > 0 and row["matmul"] > 0 and row["mib"] > 0
    first = [row["first"] for row in rows.values()]
    assert abs(first[0] - first[1]) < 0.01  # both start from the same weights
    assert ("dgl runs fp32 cpu, because DGLError" in done.stdout) == (dtype != "fp32")
    assert "halfgnn runs" not in done.stdout  # it runs in the requested mode
    accumulate = 2 if "--accumulate" in options else 1
    calls = (2 if dtype != "bf16" else 3) * (3 * accumulate + 3)  # layers * (training + evaluation)
    assert f"gspmm:u_mul_e_sum {calls}" in done.stdout
    assert "calls left to DGL: none" in done.stdout
    assert "3/3" in done.stderr  # the progress bar
    assert picture.read_bytes().startswith(b"\x89PNG")


@needs_cora
def test_default_picture_is_named_after_data_and_dtype(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if has_planetoid:
        monkeypatch.setenv("HALFGNN_DATA", str(PLANETOID))
    options = [
        "--backend",
        "dgl",
        "--dtype",
        "fp32",
        "--device",
        "cpu",
        "--epochs",
        "1",
        "--hidden",
        "4",
    ]
    (run,) = gat_amp.main(options)
    assert len(run.history.losses) == 1
    assert (tmp_path / "out" / "gat_amp_cora_fp32.png").is_file()


def test_wrong_arguments_end_the_program_with_a_message():
    done = run_program("--dataset", "corra")
    assert done.returncode == 2
    assert "argument --dataset: invalid choice: 'corra'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
        (["--backend", "pyg"], "argument --backend: invalid choice: 'pyg'"),
        (["--heads"], "argument --heads: expected at least one argument"),
        (["--heads", "1", "0"], "argument --heads: must be >= 1, got 0"),
        (["--heads", "two"], "argument --heads: invalid int value: 'two'"),
        (["--heads", "1", "1", "--layers", "3"], "argument --heads: 2 numbers for --layers 3"),
        (["--layers", "0"], "argument --layers: must be >= 1, got 0"),
        (["--hidden", "-4"], "argument --hidden: must be >= 1, got -4"),
        (["--epochs", "0"], "argument --epochs: must be >= 1, got 0"),
        (["--eval-every", "0"], "argument --eval-every: must be >= 1, got 0"),
        (["--accumulate", "0"], "argument --accumulate: must be >= 1, got 0"),
        (["--clip-norm", "0"], "argument --clip-norm: must be > 0.0, got 0"),
        (["--lr", "nan"], "argument --lr: must be > 0.0, got nan"),
        (["--weight-decay", "-1"], "argument --weight-decay: must be >= 0.0, got -1"),
        (["--dropout", "1"], "argument --dropout: must be >= 0.0 and < 1.0, got 1"),
        (["--device", "cuda"], "argument --device: cuda was requested, but PyTorch sees no GPU"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(options, message, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        gat_amp.parse(options)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ([], [1, 1, 1]),
        (["--heads", "8", "1"], [8, 1]),
        (["--layers", "2"], [1, 1]),
        (["--heads", "4", "--layers", "3"], [4] * 3),
    ],
)
def test_heads_give_the_layers(options, heads):
    args = gat_amp.parse(options)
    assert args.heads == heads
    model = gat_amp.GAT(16, 8, 5, args.heads)
    assert [layer._num_heads for layer in model.layers] == heads
    assert [layer._out_feats for layer in model.layers] == [8] * (len(heads) - 1) + [5]


# ------------------------------------------------------------------------------ modes, measurements


def test_modes_on_the_cpu():
    cpu = torch.device("cpu")
    for dtype in gat_amp.DTYPES.values():
        halfgnn = gat_amp.find_mode("halfgnn", cpu, dtype)
        assert (halfgnn.dtype, halfgnn.reason) == (dtype, None)
        dgl = gat_amp.find_mode("dgl", cpu, dtype)
        assert dgl.dtype == torch.float32
        assert (dgl.reason is None) == (dtype == torch.float32)


def test_halfgnn_computes_where_the_features_are(monkeypatch):
    """DGL's graph stays on the CPU. Meta tensors, which have no data, stand in for a GPU's tensors."""
    from halfgnn.dgl import operators

    meta = torch.device("meta")
    monkeypatch.setitem(operators._TYPES, "meta", operators._CASTABLE_TYPES)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: False)  # raises for meta
    mode = gat_amp.Mode(meta, torch.float32, features_only=True)
    ids = torch.arange(5, dtype=torch.int32)
    graph = mode.place(dgl.graph((ids, ids)))
    model = gat_amp.GAT(8, 4, 3, [2, 1]).to(meta)
    with gat_amp.kernels_of("halfgnn", mode):
        logits = model(graph, torch.empty(5, 8, device=meta))
        logits.sum().backward()
    assert (logits.device, logits.shape) == (meta, (5, 3))
    assert all(parameter.grad.device == meta for parameter in model.parameters())
    assert graph.device == torch.device("cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("dtype", gat_amp.DTYPES.values(), ids=str)
def test_halfgnn_trains_on_the_gpu(dtype):
    from halfgnn.dgl import operators

    if not operators._CUDA_IS_COMPLETE:
        pytest.skip("not every operator has a CUDA kernel")
    mode = gat_amp.find_mode("halfgnn", torch.device("cuda"), dtype)
    assert (mode.device.type, mode.dtype) == ("cuda", dtype)


def test_no_mode_at_all_is_an_error(monkeypatch):
    monkeypatch.setattr(gat_amp, "probe", lambda backend, mode: f"DGLError: no {mode.dtype}")
    with pytest.raises(RuntimeError, match=r"dgl cannot train in fp16 on cpu: DGLError: no torch.float16"):
        gat_amp.find_mode("dgl", torch.device("cpu"), torch.float16)


def test_peak_memory_of_a_step_on_the_cpu():
    nodes = torch.arange(1000)
    data = datasets.NodeData("x", "", nodes, nodes, torch.ones(1000, 16), nodes, nodes, nodes, nodes, 2)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.Adam(model.parameters())
    mib = 2**20

    def step():
        a = torch.empty(6 * mib, dtype=torch.uint8)
        b = torch.empty(5 * mib, dtype=torch.uint8)
        del a
        torch.empty(3 * mib, dtype=torch.uint8)
        del b

    resident = 1000 * 16 * 4 + 4 * 1000 * 8 + (16 * 4 + 4) * 4
    peak, matmul = gat_amp.measure_step(step, model, data, optimizer)
    assert matmul == 0
    assert 11 * mib + resident <= peak <= 11 * mib + resident + 64 * 1024


# ---------------------------------------------------------------------------------------- data sets


def check_cora(data):
    assert (data.num_nodes, len(data.src), data.num_classes) == (2708, 10556 + 2708, 7)
    assert data.features.shape == (2708, 1433)
    assert [len(part) for part in (data.train, data.val, data.test)] == [140, 500, 1000]
    assert data.labels[data.train].bincount().tolist() == [20] * 7
    assert sorted(data.labels.bincount().tolist()) == [180, 217, 298, 351, 418, 426, 818]
    graph = data.graph()
    assert graph.idtype == torch.int32
    assert graph.has_edges_between(range(2708), range(2708)).all()  # self loops
    assert graph.has_edges_between(data.dst, data.src).all()  # both directions
    torch.testing.assert_close(data.features.sum(1), torch.ones(2708))


def tree(folder):
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@needs_planetoid
def test_planetoid_cora_leaves_its_folder_alone(monkeypatch):
    before = tree(PLANETOID)
    check_cora(datasets.load("cora", PLANETOID))
    monkeypatch.setenv("HALFGNN_DATA", str(PLANETOID))
    assert "Planetoid" in datasets.load("cora").source
    assert tree(PLANETOID) == before


@needs_packaged
def test_packaged_cora(monkeypatch):
    monkeypatch.delenv("HALFGNN_DATA", raising=False)
    data = datasets.load("cora")
    assert "graphdatascience" in data.source
    check_cora(data)
    assert "graphdatascience" not in sys.modules


def test_split_by_hash_depends_on_keys_alone():
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(7, (2708,), generator=generator)
    keys = torch.randperm(10**6, generator=generator)[:2708].tolist()
    split = datasets.split_by_hash(keys, labels)
    assert [len(part) for part in split] == [140, 500, 1000]
    assert len(torch.cat(split).unique()) == 1640
    assert labels[split[0]].bincount().tolist() == [20] * 7
    order = torch.randperm(2708, generator=generator)
    shuffled = datasets.split_by_hash([keys[i] for i in order], labels[order])
    for part, other in zip(split, shuffled):
        assert torch.equal(part, order[other])
    # This never changes: the digest of "0" begins with 5f and that of "1" with 6b.
    assert datasets.split_by_hash([1, 0], torch.tensor([0, 0]), per_class=1)[0].tolist() == [1]


def test_unknown_data_set():
    with pytest.raises(ValueError, match=r"name must be one of cora, .*, got 'corra'"):
        datasets.load("corra")


def test_failed_download_says_what_would_help(monkeypatch, tmp_path):
    import dgl.data

    def offline(*args, **options):
        raise ConnectionError("Failed to resolve 'example.org'\nand more")

    monkeypatch.setattr(dgl.data, "RedditDataset", offline)
    with pytest.raises(datasets.DataError, match=r"'reddit' could not be loaded .*Failed to resolve.*--data-dir"):
        datasets.load("reddit", tmp_path)
    with pytest.raises(SystemExit) as end:
        gat_amp.main(["--dataset", "reddit", "--data-dir", str(tmp_path)])
    assert str(end.value).startswith("gat_amp: data set 'reddit' could not be loaded")


@pytest.mark.skipif(importlib.util.find_spec("ogb") is not None, reason="ogb is installed")
def test_arxiv_without_ogb_says_what_to_install():
    with pytest.raises(datasets.DataError, match="pip install ogb"):
        datasets.load("ogbn-arxiv")


# -------------------------------------------------------------------------- accuracy of fused modules


def test_accuracy_of_fused_modules_is_tabulated(tmp_path, monkeypatch, capsys):
    import planetoid_accuracy

    from tests.examples.test_train import random_data

    monkeypatch.setattr(datasets, "load", lambda name, folder: random_data())
    rows = tmp_path / "new" / "rows.csv"
    planetoid_accuracy.main(["--datasets", "cora", "--seeds", "2", "--epochs", "3", "--out", str(rows)])
    lines = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [(line[1].strip(), line[2].strip(), line[3].strip()) for line in lines] == [
        (module, *run) for module in ("GATConv", "GATv2Conv") for run in planetoid_accuracy.RUNS
    ]
    assert all(re.fullmatch(r" \d+\.\d\d ± \d+\.\d\d ", line[4]) for line in lines)
    written = rows.read_text().splitlines()
    assert len(written) == 1 + 12 and written[0] == ",".join(planetoid_accuracy.COLUMNS)


def test_a_folder_is_no_place_for_rows(tmp_path):
    import planetoid_accuracy

    with pytest.raises(SystemExit, match="is a folder; expected a CSV file"):
        planetoid_accuracy.main(["--out", str(tmp_path)])
