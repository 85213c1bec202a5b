"""The modules of halfgnn.nn and halfgnn.pyg as models that take tensors alone, for torch.export, AOTInductor and TorchScript.

python -m tests.support_export            exports, compiles and scripts all of them (minutes), and prints what works
python -m tests.support_export --update   writes that into docs/serving.md
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.export import Dim

import halfgnn
import halfgnn.nn
from tests.api_tables import with_tables

with contextlib.suppress(ImportError):  # torch_geometric is not installed
    import halfgnn.pyg

PAGE = Path(__file__).resolve().parents[1] / "docs" / "serving.md"
WIDTH, EDGE_WIDTH, TYPES = 8, 5, 3
DRAWN_FOR, OTHER = (30, 120), (33, 127)  # nodes and edges of the graph of the export, and of another one
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 8e-2}
WITHOUT_OPERATORS = ("HeteroLinear", "SAGEConv-lstm")  # made of operators of PyTorch
# The last: fp32 parameters under autocast in bf16.
PRECISIONS = ("fp32", "fp16", "bf16", "autocast")
COLUMNS = ("torch.export", "AOTInductor", "torch.jit.script", "torch.jit.trace")
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16, "autocast": torch.float32}
ALL = bool(os.environ.get("HALFGNN_TEST_ALL"))
# Tried in all precisions by `make test`, and compiled by `make test-all`.
SAMPLE = ("GATConv", "SAGEConv-lstm", "SAGEConv", "TransformerConv")


def of_precisions(cases: Iterable[str]) -> list[tuple[str, str]]:
    """Which case in which precision `make test` exports: make test-all exports all of them."""
    return [(name, kind) for name in cases for kind in PRECISIONS if ALL or kind == "fp32" or name in SAMPLE]


def of_columns(cases: Iterable[str]) -> list[tuple[str, str]]:
    """Which cells of the table make test-all tries again. The others would compile for half an hour."""
    return [(name, column) for name in cases for column in COLUMNS[1:] if column != "AOTInductor" or name in SAMPLE]


# ---- inputs ----------------------------------------------------------------------------------------------------------------------


def tensors(names: Sequence[str], num_nodes: int, num_edges: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x: rows of nodes; edge_index; csc: three tensors; features, wide and weight: of edges; edge_type, node_type: ids."""
    draw = torch.Generator().manual_seed(num_nodes)
    found: list[Tensor] = []
    for name in names:
        if name == "x":
            found.append(torch.randn(num_nodes, WIDTH, generator=draw).to(dtype))
        elif name == "edge_index":
            found.append(torch.randint(num_nodes, (2, num_edges), generator=draw))
        elif name in ("csc", "full csc"):
            ends = torch.randint(num_nodes, (2, num_edges), generator=draw)
            if name == "full csc":  # no node is without in-edges
                ends[1, :num_nodes] = torch.arange(num_nodes)
            found += halfgnn.Graph.from_edges(*ends, num_src=num_nodes, num_dst=num_nodes).csc()
        elif name in ("features", "wide"):
            found.append(torch.rand(num_edges, EDGE_WIDTH if name == "features" else WIDTH, generator=draw).to(dtype))
        elif name == "weight":
            found.append(torch.rand(num_edges, generator=draw).to(dtype))
        elif name == "edge_type":
            found.append(torch.randint(TYPES, (num_edges,), generator=draw))
        elif name == "node_type":
            found.append(torch.randint(TYPES, (num_nodes,), generator=draw))
        else:
            raise ValueError(f"{name!r} is no input")
    return tuple(found)


def sizes(names: Sequence[str]) -> tuple[dict[int, Any], ...]:
    """Which dimensions of :func:`tensors` may change."""
    found: list[dict[int, Any]] = []
    for name in names:
        found += [{0: Dim.AUTO}] * 3 if "csc" in name else [{int(name == "edge_index"): Dim.AUTO}]
    return tuple(found)


# ---- models ----------------------------------------------------------------------------------------------------------------------


class OnGraph(nn.Module):
    """A module of halfgnn.nn, whose graph comes as the tensors of its in-edges."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, indptr: Tensor, indices: Tensor, edge_ids: Tensor, *rest: Tensor) -> Any:
        g = halfgnn.Graph.from_csc(indptr, indices, edge_ids, num_src=x.shape[0], check=False)
        return self.module(g, x, *rest)


class OfWeights(OnGraph):
    """A module that takes numbers of edges and no features."""

    def forward(self, x: Tensor, indptr: Tensor, indices: Tensor, edge_ids: Tensor, *rest: Tensor) -> Any:
        g = halfgnn.Graph.from_csc(indptr, indices, edge_ids, num_src=x.shape[0], check=False)
        return self.module(g, *rest)


CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")


class OnRelations(nn.Module):
    """A module of halfgnn.nn on a heterograph of two relations, each as the tensors of its in-edges."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, paper: Tensor, author: Tensor, *sides: Tensor) -> Any:
        cites, writes = (
            halfgnn.Graph.from_csc(*side, num_src=rows.shape[0], check=False)
            for side, rows in ((sides[:3], paper), (sides[3:], author))
        )
        g = halfgnn.HeteroGraph({CITES: cites, WRITES: writes})
        return self.module(g, {"paper": paper, "author": author})


class OnEdgeIndices(nn.Module):
    """HeteroConv of halfgnn.pyg on the edge_index of two relations."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, paper: Tensor, author: Tensor, cites: Tensor, writes: Tensor) -> Any:
        return self.module({"paper": paper, "author": author}, {CITES: cites, WRITES: writes})


# ---- what is tried ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """module: its name in __all__. variant: what distinguishes it from other cases of the module. inputs: see tensors()."""

    module: str
    make: Callable[[], nn.Module]
    inputs: tuple[str, ...]
    variant: str = ""

    def __str__(self) -> str:
        return f"{self.module} {self.variant}".strip().replace(" ", "-")


def _mlp(inputs: int, outputs: int = 6) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, outputs))


def nn_cases() -> list[Case]:
    """Of halfgnn.nn."""
    k, on, plain = halfgnn.nn, OnGraph, ("x", "csc")
    features = (*plain, "features")
    etypes, relations = (CITES, WRITES), ("x", "x", "csc", "csc")
    gat = lambda: k.GATConv(WIDTH, 4, 2, allow_zero_in_degree=True)  # noqa: E731
    return [
        Case("RGAT", lambda: OnRelations(k.RGAT(WIDTH, 8, 4, etypes, "paper", num_layers=1)), relations),
        Case("DotGatConv", lambda: on(k.DotGatConv(WIDTH, 4, 2, allow_zero_in_degree=True)), plain),
        Case("EGATConv", lambda: on(k.EGATConv(WIDTH, EDGE_WIDTH, 4, 3, 2)), ("x", "full csc", "features")),
        Case("EdgeGATConv", lambda: on(k.EdgeGATConv(WIDTH, EDGE_WIDTH, 4, 2, allow_zero_in_degree=True)), features),
        Case("EdgeNetwork", lambda: on(k.EdgeNetwork(*_mlp(2 * WIDTH + EDGE_WIDTH))), features),
        Case("EdgeWeightNorm", lambda: OfWeights(k.EdgeWeightNorm("both")), (*plain, "weight")),
        Case("GATConv", lambda: on(gat()), plain),
        Case("GATv2Conv", lambda: on(k.GATv2Conv(WIDTH, 4, 2, allow_zero_in_degree=True)), plain),
        Case("GINConv", lambda: on(k.GINConv(nn.Linear(WIDTH, 6), "sum", learn_eps=True)), plain),
        Case("GINEConv", lambda: on(k.GINEConv(nn.Linear(WIDTH, 6))), (*plain, "wide")),
        Case("GatedGCNConv", lambda: on(k.GatedGCNConv(WIDTH, EDGE_WIDTH, 6)), features),
        Case("GraphConv", lambda: on(k.GraphConv(WIDTH, 6, allow_zero_in_degree=True)), plain),
        Case("HeteroGraphConv", lambda: OnRelations(k.HeteroGraphConv({"cites": gat(), "writes": gat()})), relations),
        Case("PNAConv", lambda: on(k.PNAConv(WIDTH, 6, ["mean", "max", "std"], ["identity", "amplification"], 2.5)), plain),
        Case("SAGEConv", lambda: on(k.SAGEConv(WIDTH, 6, "mean")), plain, "mean"),
        Case("SAGEConv", lambda: on(k.SAGEConv(WIDTH, 6, "gcn")), plain, "gcn"),
        Case("SAGEConv", lambda: on(k.SAGEConv(WIDTH, 6, "pool")), plain, "pool"),
        Case("SAGEConv", lambda: on(k.SAGEConv(WIDTH, 6, "lstm")), plain, "lstm"),
        Case("TransformerConv", lambda: on(k.TransformerConv(WIDTH, 4, 2, edge_dim=EDGE_WIDTH)), features),
    ]  # fmt: skip


def pyg_cases(k: Any) -> list[Case]:
    """Of halfgnn.pyg, or of torch_geometric.nn: k."""
    from torch_geometric.nn.models import schnet

    plain, degrees = ("x", "edge_index"), torch.ones(5, dtype=torch.long)
    features, relations = (*plain, "features"), ("x", "x", "edge_index", "edge_index")
    cf = getattr(k, "CFConv", schnet.CFConv)
    filters = lambda: nn.Sequential(nn.Linear(EDGE_WIDTH, 6), schnet.ShiftedSoftplus(), nn.Linear(6, 6))  # noqa: E731
    pair = lambda: {CITES: k.SAGEConv(WIDTH, 6), WRITES: k.SAGEConv((WIDTH, WIDTH), 6)}  # noqa: E731
    attentions = lambda: {etype: k.GATConv(WIDTH, 3, heads=2, add_self_loops=False) for etype in (CITES, WRITES)}  # noqa: E731
    return [
        Case("CFConv", lambda: cf(WIDTH, 6, 6, filters(), 2.0), (*plain, "weight", "features")),
        Case("EdgeConv", lambda: k.EdgeConv(_mlp(2 * WIDTH)), plain),
        Case("GATConv", lambda: k.GATConv(WIDTH, 3, heads=2), plain),
        Case("GATConv", lambda: k.GATConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH), features, "edges"),
        Case("GATv2Conv", lambda: k.GATv2Conv(WIDTH, 3, heads=2), plain),
        Case("GATv2Conv", lambda: k.GATv2Conv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH), features, "edges"),
        Case("GCNConv", lambda: k.GCNConv(WIDTH, 6), (*plain, "weight")),
        Case("GINConv", lambda: k.GINConv(_mlp(WIDTH), train_eps=True), plain),
        Case("GINEConv", lambda: k.GINEConv(nn.Linear(WIDTH, 6), edge_dim=EDGE_WIDTH), features),
        Case("GraphConv", lambda: k.GraphConv(WIDTH, 6), (*plain, "weight")),
        Case("HeteroConv", lambda: OnEdgeIndices(k.HeteroConv(pair())), relations, "of SAGEConv"),
        Case("HeteroConv", lambda: OnEdgeIndices(k.HeteroConv(attentions())), relations, "of GATConv"),
        Case("HeteroLinear", lambda: k.HeteroLinear(WIDTH, 6, TYPES), ("x", "node_type")),
        Case("LGConv", lambda: k.LGConv(), plain),
        Case("PNAConv", lambda: k.PNAConv(WIDTH, 6, ["mean", "max", "std"], ["identity", "amplification"], degrees), plain),
        Case("RGCNConv", lambda: k.RGCNConv(WIDTH, 6, TYPES), (*plain, "edge_type")),
        Case("ResGatedGraphConv", lambda: k.ResGatedGraphConv(WIDTH, 6, edge_dim=EDGE_WIDTH), features),
        Case("SAGEConv", lambda: k.SAGEConv(WIDTH, 6), plain),
        Case("TransformerConv", lambda: k.TransformerConv(WIDTH, 3, heads=2, edge_dim=EDGE_WIDTH), features),
    ]  # fmt: skip


# ---- trying it -------------------------------------------------------------------------------------------------------------------


def model_of(case: Case, precision: str = "fp32") -> nn.Module:
    torch.manual_seed(len(case.module))
    return case.make().eval().to(DTYPES[precision])


def inputs_of(case: Case, size: tuple[int, int] = DRAWN_FOR, precision: str = "fp32") -> tuple[Tensor, ...]:
    return tensors(case.inputs, *size, DTYPES[precision])


def precision_context(precision: str) -> contextlib.AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast")


class UnderAutocast(nn.Module):
    """Export writes down an autocast that is entered in the model's forward, and no casts of one that is entered around export."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Any:
        with precision_context("autocast"):
            return self.model(*inputs)


def exported(
    case: Case, model: nn.Module, precision: str = "fp32", strict: bool = False
) -> torch.export.ExportedProgram:
    """The program of a model, for any numbers of nodes and edges."""
    shapes = _shapes(case, model)
    if precision == "autocast":
        model, shapes = UnderAutocast(model), (tuple(sizes(case.inputs)),)
    with torch.no_grad():
        return torch.export.export(model, inputs_of(case, precision=precision), dynamic_shapes=shapes, strict=strict)


def _shapes(case: Case, model: nn.Module) -> Any:
    shapes = sizes(case.inputs)
    named = (
        4 if isinstance(model, OnGraph) else 2 if isinstance(model, OnRelations) else len(shapes)
    )  # the others are one, *rest
    return (*shapes[:named], shapes[named:]) if shapes[named:] else shapes


def check_same(case: Case, model: nn.Module, call: Callable[..., Any], precision: str = "fp32") -> None:
    """Raises AssertionError unless a program gives the model's results on both graphs."""
    for size in (DRAWN_FOR, OTHER):
        inputs = inputs_of(case, size, precision)
        with torch.no_grad(), precision_context(precision):
            expected = pytree.tree_leaves(model(*inputs))
        with torch.no_grad():
            found = pytree.tree_leaves(call(*inputs))
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected):
            assert ours.dtype == theirs.dtype
            tolerance = TOLERANCE[ours.dtype]
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def code_of(program: torch.export.ExportedProgram) -> str:
    """With that of the parts that run with other settings of autocast."""
    return "\n".join(part.code for part in program.graph_module.modules() if hasattr(part, "code"))


def check_export(case: Case, precision: str) -> None:
    """Exports, and compares with the module. The program must hold operators of halfgnn, and none that needs Python."""
    model = model_of(case, precision)
    program = exported(case, model, precision)
    code = code_of(program)
    assert "halfgnn_pyg" not in code and ("halfgnn." in code) is (str(case) not in WITHOUT_OPERATORS)
    check_same(case, model, program.module(), precision)


_LOADER = """
import sys, torch, halfgnn
for name in sys.argv[1:]:
    program, args, expected = torch.export.load(f"{name}.pt2").module(), *torch.load(f"{name}.pt")
    torch.testing.assert_close(program(*args), expected)
assert not {"halfgnn.nn", "halfgnn.pyg", "torch_geometric"} & set(sys.modules)
"""


def check_loads(cases: Mapping[str, Case], folder: Path) -> None:
    """Saves programs, and runs them in a process that imports halfgnn and nothing else of it."""
    for name, case in cases.items():
        model, args = model_of(case), inputs_of(case, OTHER)
        torch.export.save(exported(case, model), folder / f"{name}.pt2")
        with torch.no_grad():
            torch.save((args, model(*args)), folder / f"{name}.pt")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(PAGE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    subprocess.run([sys.executable, "-c", _LOADER, *cases], cwd=folder, env=environment, check=True, timeout=300)


# ---- AOTInductor and TorchScript -------------------------------------------------------------------------------------------------


def compiled(case: Case, model: nn.Module, folder: Path) -> Callable[..., Any]:
    """The package of AOTInductor of a model in fp32, loaded."""
    path = torch._inductor.aoti_compile_and_package(
        exported(case, model), package_path=str(folder / f"{type(model).__name__}.pt2")
    )
    return torch._inductor.aoti_load_package(path)


def scripted(case: Case, model: nn.Module) -> Callable[..., Any]:
    return torch.jit.script(model)


def traced(case: Case, model: nn.Module) -> Callable[..., Any]:
    with torch.no_grad():
        return torch.jit.trace(model, inputs_of(case), check_trace=False)


# ---- the table -------------------------------------------------------------------------------------------------------------------


def works(case: Case, column: str) -> str:
    """A cell of the table: yes, or no; of torch.export, the precisions if some work."""
    if column == "torch.export":
        found = [precision for precision in PRECISIONS if _is_right(case, exported, precision)]
        return "yes" if len(found) == len(PRECISIONS) else ", ".join(found) or "no"
    with tempfile.TemporaryDirectory() as folder:
        tries = {
            "AOTInductor": lambda case, model: compiled(case, model, Path(folder)),
            "torch.jit.script": scripted,
            "torch.jit.trace": traced,
        }
        return "yes" if _is_right(case, tries[column]) else "no"


def _is_right(case: Case, make: Callable[..., Any], *precision: str) -> bool:
    model = model_of(case, *precision)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make(case, model, *precision)
            check_same(case, model, made.module() if hasattr(made, "graph_signature") else made, *precision)
    except Exception as error:  # of PyTorch's, of any kind
        print(f"{case}, {make.__name__}{precision}: {type(error).__name__}: {error}"[:600], file=sys.stderr)
        return False
    return True


def packages() -> dict[str, list[Case]]:
    return {"halfgnn.nn": nn_cases(), "halfgnn.pyg": pyg_cases(halfgnn.pyg)}


def table() -> str:
    """Made by trying everything."""
    return "\n".join([header(), *(line(name, case) for name, cases in packages().items() for case in cases)])


def header() -> str:
    return f"| module | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}"


def line(package: str, case: Case) -> str:
    cells = [works(case, column) for column in COLUMNS]
    print(package, case, *cells, sep=" | ", file=sys.stderr, flush=True)
    return f"| {title(package, case)} | {' | '.join(cells)} |"


def title(package: str, case: Case) -> str:
    return f"`{package}.{case.module}`" + (f", {case.variant}" if case.variant else "")


def shown() -> dict[str, dict[str, str]]:
    """The table of the page; empty in a copy without documents."""
    return cells_of(PAGE.read_text()) if PAGE.exists() else {}


def cells_of(text: str) -> dict[str, dict[str, str]]:
    """The table in the page: {title of a case: {column: cell}}."""
    lines = text.split("<!-- exports: begin -->\n")[1].split("\n<!-- exports: end -->")[0].split("\n")[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: dict(zip(COLUMNS, cells)) for name, *cells in rows}


if __name__ == "__main__":
    made = table()
    if sys.argv[1:] == ["--update"]:
        PAGE.write_text(with_tables(PAGE.read_text(), {"exports": made}))
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        print(made)
