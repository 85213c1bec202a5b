"""The pages: their Python runs, their commands and links lead somewhere, and their tables of calls are those of the code."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests import api_tables

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "README.md").exists():
    pytest.skip("the pages are not here", allow_module_level=True)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "mag240m" / "README.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page):
    return page.relative_to(ROOT).as_posix()


# ---- Python ----------------------------------------------------------------------------------------------------------------------

HAS_GPU = torch.cuda.is_available()
GRAPH = """
import torch, halfgnn
from halfgnn import ops
ids = torch.arange(6)
g = halfgnn.Graph.from_edges(ids, ids.roll(1), num_src=6, num_dst=6)
"""
# The names of docs/migrating.md.
MIGRATING = """
import torch
N, E = 40, 200
src, dst = torch.randint(N, (2, E))
edge_index = torch.stack([src, dst])
x, w, e, layers = torch.randn(N, 64), torch.rand(E, 1), torch.randn(E, 64), [torch.nn.Linear(64, 64) for _ in range(3)]
"""
MIGRATING_ROWS = """
import dgl, dgl.function as fn, halfgnn
from halfgnn import ops
from halfgnn.compat.torch_scatter import scatter, scatter_softmax, segment_csr
g, graph = halfgnn.Graph.from_edges(src, dst, num_src=N, num_dst=N), dgl.graph((src, dst), num_nodes=N)
q, k, score, value, offsets = x, x + 1, w, e, torch.tensor([0, 50, 200])
a = torch.sparse_coo_tensor(torch.stack([dst, src]), w[:, 0], (N, N))
"""
# What comes before a block: what it takes from the reader's program. Further blocks of a page go on where the one before ended.
PRELUDES = {
    ("docs/minibatches.md", 0): """
import numpy, torch, torch.nn.functional as F
from halfgnn import Graph
from halfgnn.nn import SAGEConv
numpy.save("node_feat.npy", numpy.ones((40, 8), "float16"))
graph = Graph.from_edges(*torch.randint(40, (2, 200)), num_src=40, num_dst=40)
label_tensor, train_ids = torch.arange(40) % 3, torch.arange(20)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(8, 3, "mean"), SAGEConv(3, 3, "mean")])
    def forward(self, blocks, x):
        return self.layers[1](blocks[1], self.layers[0](blocks[0], x))
model = Model().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    ("docs/compiled.md", 0): "import torch; model = torch.nn.Linear(2, 2)",
    ("docs/compiled.md", 2): """
import torch, torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import BatchNorm, GCNConv, global_mean_pool
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = GCNConv(8, 3), BatchNorm(3)
    def forward(self, x, edge_index, batch, size):
        return global_mean_pool(self.norm(self.conv(x, edge_index)), batch, size)
model = Model()
dataset = [Data(x=torch.randn(n, 8), edge_index=torch.randint(n, (2, 9)), y=torch.randn(1, 3)) for n in range(2, 9)]
""",
    ("docs/compiled.md", 3): """
edge_index, x, compiled_layer = torch.randint(5, (2, 9)), torch.randn(5, 8), GCNConv(8, 3)
""",
    ("docs/eight_bits.md", 2): """
from halfgnn.dataloading import NeighborDataLoader, NeighborSampler
whole = Graph.from_edges(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0]), num_src=3, num_dst=3)
batch = next(iter(NeighborDataLoader(NeighborSampler(whole, [2]), torch.arange(2), batch_size=2)))
""",
    ("docs/distributed.md", 1): """
import os, shutil
shutil.rmtree("parts")  # for two processes
partition(graph, 1, out="parts")
cut_features("parts", "x", torch.randn(1000, 64))
cut_features("parts", "labels", torch.randint(5, (1000,)))
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
""",
    ("docs/distributed.md", 2): """
import torch_geometric.nn as pyg
from halfgnn.nn import HeteroGraphConv
etypes = {("a", "r", "b"): torch.randint(9, (2, 30)), ("b", "s", "b"): torch.randint(9, (2, 30))}
partition(halfgnn.HeteroGraph.from_edge_index_dict(etypes, {"a": 9, "b": 9}), 1, out="typed_parts")
for ntype in "ab":
    cut_features("typed_parts", "x", torch.randn(9, 4), of=ntype)
conv = HeteroGraphConv({name: SAGEConv(4, 2, "mean") for name in "rs"})
pyg_conv = pyg.HeteroConv({etype: pyg.SAGEConv((4, 4), 2) for etype in etypes})
dist.init_process_group("gloo")
""",
    ("docs/distributed.md", 3): """
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(64, 8, "mean"), SAGEConv(8, 5, "mean")])

    def forward(self, blocks, x):
        for block, layer in zip(blocks, self.layers):
            x = layer(block, x)
        return x

g, network = DistGraph.load("parts"), Network()
optimizer = torch.optim.Adam(network.parameters())
""",
    ("docs/distributed.md", 4): "dist.destroy_process_group()",
    ("docs/migrating.md", 0): "import torch",
    ("docs/migrating.md", 1): MIGRATING,
    ("docs/nn.md", 0): "import dgl.nn, halfgnn.nn; dgl_conv = dgl.nn.GATConv(64, 32, 4)",
    ("docs/operators.md", 0): GRAPH
    + """
position, h, forces = torch.randn(6, 3, requires_grad=True), torch.randn(6, 4), torch.randn(6, 3)
filters, model = torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
""",
    ("docs/pyg.md", 0): """
import torch, torch.nn.functional as F, halfgnn.dataloading, halfgnn.pyg
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
if not HAS_SAMPLER:
    NeighborLoader = lambda data, transform, **options: [transform(data)]  # the whole graph is the sample
edge_index = torch.randint(50, (2, 200))
data = Data(x=torch.randn(50, 8), edge_index=edge_index, y=torch.randint(3, (50,)))
model, x = halfgnn.pyg.SAGEConv(8, 3).to(DEVICE), data.x
""",
    ("docs/pyg.md", 3): """
optimizer = torch.optim.AdamW(model.parameters())
loader = [halfgnn.pyg.ToGraph()(data)]
""",
    ("docs/reorder.md", 0): GRAPH
    + """
x, labels, train_mask, train_ids = torch.randn(6, 4), torch.arange(6), torch.ones(6).bool(), ids[:2]
model = ops.copy_u_sum
""",
}
NEEDS = {
    "README.md": "torch_geometric",
    "docs/index.md": "torch_geometric",
    "docs/compiled.md": "torch_geometric",
    "docs/distributed.md": "torch_geometric",
    "docs/migrating.md": "dgl torch_geometric",
    "docs/nn.md": "dgl",
    "docs/pyg.md": "torch_geometric",
}
HAS_SAMPLER = any(
    importlib.util.find_spec(name) is not None for name in ("pyg_lib", "torch_sparse")
)  # of NeighborLoader


def runnable(code: str) -> str:
    """A block for this machine. Without a GPU it is changed as the pages say."""
    return code if HAS_GPU else code.replace('"cuda"', '"cpu"').replace("torch.float16)", "torch.bfloat16)")


def run_blocks(name: str) -> None:
    """The blocks of a page, one after another."""
    page = ROOT / name
    namespace = {"DEVICE": "cuda" if HAS_GPU else "cpu", "HAS_SAMPLER": HAS_SAMPLER}
    # Eager code of compiled functions: the pages' claims about compilers have tests of their own, which take longer.
    with mock.patch.object(torch, "compile", functools.partial(torch.compile, backend="eager")):
        for number, code in enumerate(BLOCK.findall(page.read_text())):
            exec(PRELUDES.get((name, number), ""), namespace)
            exec(compile(runnable(code), f"{page.name}, block {number}", "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name_of)
def test_blocks_run(page, tmp_path, monkeypatch):
    for name in NEEDS.get(name_of(page), "").split():
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    try:
        run_blocks(name_of(page))
    finally:
        for drop_in in filter(None, map(sys.modules.get, ("halfgnn.pyg", "halfgnn.dgl"))):
            drop_in.unpatch()


def test_lines_before_and_after_a_move_agree():
    """Those of docs/migrating.md: its tables, and blocks that assign `out` before and after."""
    for name in NEEDS["docs/migrating.md"].split():
        pytest.importorskip(name)
    text, names = (ROOT / "docs" / "migrating.md").read_text(), {}
    exec(MIGRATING + MIGRATING_ROWS, names)
    rows = re.findall(r"^\| `([^`]+\))`[^|]*\| `([^`]+\))`[^|]*\|$", text, re.MULTILINE)
    pairs = [(eval(before, names), eval(after, names)) for before, after in rows]
    for code in BLOCK.findall(text):
        before, _, after = code.rpartition("\n\n")
        if "# before" in before and "# after" in after and "\nout = " in before:
            exec(before, names)
            first = names["out"]
            exec(after, names)
            pairs.append((first, names["out"]))
    assert len(pairs) == 14
    for first, second in pairs:
        torch.testing.assert_close(second, first)


# ---- commands --------------------------------------------------------------------------------------------------------------------

BEGIN = r"(?:^ {4}|`)(?:[A-Z_]+=(?:\"[^\"]*\"|\S+) )*"  # an indented line or code in a line, and settings


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page):
    text = page.read_text()
    rules = "".join(file.read_text() for file in [ROOT / "Makefile", *(ROOT / "make").glob("*.mk")])
    targets = {name for line in re.findall(r"^([a-z][\w -]*):(?!=)", rules, re.MULTILINE) for name in line.split()}
    assert set(re.findall(BEGIN + r"make ([a-z][\w-]*)", text, re.MULTILINE)) - targets == set()
    programs = re.findall(
        BEGIN + r"(?:\S*/)?(?:python3?|torchrun)(?: --?[a-z-]+ \d+)* ([\w/]+\.py)", text, re.MULTILINE
    )
    assert [name for name in programs if not (ROOT / name).exists()] == []
    modules = re.findall(BEGIN + r"(?:\S*/)?python3? -m ([\w.]+)", text, re.MULTILINE)
    paths = [ROOT / name.replace(".", "/") for name in modules]
    assert [path for path in paths if not (path.is_dir() or path.with_suffix(".py").exists())] == []


def test_make_alone_lists_its_targets():
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))
    }  # of make test
    result = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60, env=outside)
    assert all(f"make {name}" in result.stdout for name in ("demo", "bench", "gpu-test"))
    assert "pip" not in result.stdout and result.stderr == ""


# ---- links and names of files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_files_exist(page):
    text = page.read_text()
    wrong = []
    for target in re.findall(r"\]\(([^)]+)\)", text):
        file, _, anchor = target.partition("#")
        if target.startswith("https://"):
            continue
        linked = page if not file else page.parent / file
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            wrong.append(target)
    folders = "benchmarks|csrc|docs|examples|findings|halfgnn|laboratory|requirements|tests"
    files = re.findall(rf"`((?:{folders})/[\w/.-]+\.\w+)`", text)
    assert [*wrong, *(file for file in files if not (ROOT / file).exists() and "_C." not in file)] == []


@pytest.mark.parametrize("name", ["nn", "pyg", "dgl", "compat", "dataloading", "distributed", "padding"])
def test_reference_has_every_public_name(name):
    if name == "pyg":
        pytest.importorskip("torch_geometric")
    public = set(importlib.import_module(f"halfgnn.{name}").__all__)
    text = (ROOT / "docs" / "api.md").read_text()
    listed = re.search(rf"^::: halfgnn\.{name}\n    options:\n      members: \[([^\]]*)\]", text, re.MULTILINE)
    others = re.findall(rf"^::: halfgnn\.{name}\.[\w.]*?(\w+)$", text, re.MULTILINE)
    assert {*listed.group(1).replace(",", " ").split(), *others} == public


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as index pages of repositories make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ---- tables ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", api_tables.pages(), ids=name_of)
def test_tables_of_calls(page):
    text = page.read_text()
    assert text == api_tables.with_tables(text, api_tables.pages()[page]), (
        "write it again: python -m tests.api_tables --update"
    )


def test_every_operator_and_method_is_listed():
    listed = set(re.findall(r"`(\w+)[(`]", api_tables.calls()))
    assert set(api_tables.ops.__all__) <= listed
    assert {"from_edges", "csc", "reverse", "to", "idtype"} <= set(
        re.findall(r"`(\w+)", api_tables.methods(api_tables.CLASSES[0]))
    )
