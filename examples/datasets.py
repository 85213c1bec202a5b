"""Node-classification data sets for the examples, all with the same fields and the same kind of split.

* Cora, Citeseer and Pubmed with the Planetoid split, through ``dgl.data`` or, without DGL, ``torch_geometric.datasets``.
* Cora without a network: the PyPI wheel ``graphdatascience`` contains the graph. Its Parquet files are read with
  ``pyarrow``; the package itself is never imported. It has no split, so one is made here: see `split_by_hash`.
* Reddit through either, and ogbn-arxiv through ``ogb``, both downloaded.

Every node has exactly one self loop, so that every node has an in-edge. Graphs are undirected if the data set is.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch

os.environ.setdefault("DGLBACKEND", "pytorch")  # otherwise the first import of dgl writes a configuration file

PLANETOID = {"cora": "cora_v2", "citeseer": "citeseer", "pubmed": "pubmed"}
NAMES = (*PLANETOID, "reddit", "ogbn-arxiv")
OGB = ("ogbn-arxiv", "ogbn-proteins", "ogbn-products")
# --help of the option that names the folder of raw files.
DATA_DIR_HELP = (
    "folder with one folder of raw files per data set, named as in dgl.data: cora_v2_d697a464, citeseer_d6836239. Data"
    " that is missing there is downloaded; default: $HALFGNN_DATA"
)
_PYG_FOLDER = Path.home() / ".cache" / "torch_geometric"
INSTALL_PACKAGED = "`pip install --no-deps graphdatascience==1.17` and `pip install pyarrow`"


class DataError(RuntimeError):
    """The data set is not available on this machine; the message says what would help."""


@dataclass
class NodeData:
    """A graph with node features and labels.

    src, dst: int32 (E,), with self loops. features: (N, D), loaded as float32. labels: int64 (N,). train, val, test:
    int64 node ids. source: the source of the data, in words.
    """

    name: str
    source: str
    src: torch.Tensor
    dst: torch.Tensor
    features: torch.Tensor
    labels: torch.Tensor
    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor
    num_classes: int

    @property
    def num_nodes(self) -> int:
        return self.features.shape[0]

    def graph(self):
        """A new DGLGraph with int32 ids on the CPU. It has nothing cached by an earlier user of the data."""
        import dgl

        return dgl.graph((self.src, self.dst), num_nodes=self.num_nodes)

    def to(self, device, dtype: torch.dtype = torch.float32) -> NodeData:
        """A copy on `device` with features of `dtype`. The edges are not moved."""
        moved = {key: getattr(self, key).to(device) for key in ("labels", "train", "val", "test")}
        return replace(self, features=self.features.to(device, dtype), **moved)


def load(name: str, data_dir: str | os.PathLike | None = None) -> NodeData:
    """Loads a data set of `NAMES`.

    data_dir: the folder for raw data in the layout of ``dgl.data`` (``cora_v2_d697a464/`` and so on); default: the
    environment variable HALFGNN_DATA. Without either, Cora is the packaged one if its wheel is installed, and other
    data goes to the default folder of its library.

    Raises ValueError for an unknown name, and DataError if the data is not here and cannot be downloaded.
    """
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    data_dir = data_dir or os.environ.get("HALFGNN_DATA") or None
    if name == "cora" and data_dir is None and packaged("cora") is not None:
        return load_packaged_cora()
    loader = load_planetoid if name in PLANETOID else {"reddit": load_reddit, "ogbn-arxiv": load_arxiv}[name]
    return _explained(loader, name, data_dir)


def edges(name: str, data_dir: str | os.PathLike | None = None) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(src, dst, number of nodes) of a data set of `NAMES` or `OGB`, without self loops. Edges of ogb are as in the
    package, so ogbn-arxiv is directed. data_dir and errors: see `load`."""
    if name in OGB:
        src, dst, num_nodes = _explained(load_ogb_edges, name, data_dir or os.environ.get("HALFGNN_DATA") or None)
    else:
        data = load(name, data_dir)
        src, dst, num_nodes = data.src, data.dst, data.num_nodes
    keep = src != dst
    return src[keep], dst[keep], num_nodes


def _explained(loader, name: str, data_dir: str | os.PathLike | None):
    """loader(name, data_dir). Every error becomes a DataError that says what would help."""
    try:
        return loader(name, None if data_dir is None else Path(data_dir))
    except (DataError, MemoryError):
        raise
    except Exception as error:  # the libraries raise anything from OSError to DGLError when a download fails
        reason = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(
            f"data set {name!r} could not be loaded ({type(error).__name__}: {reason}). It is downloaded on first use:"
            " check the network, or put its raw files into a folder and name that in HALFGNN_DATA or with --data-dir."
            f" {_without_network()}"
        ) from error


def _without_network() -> str:
    if packaged("cora") is not None:
        return "cora without --data-dir and HALFGNN_DATA needs no network."
    return f"{INSTALL_PACKAGED} bring the data of cora."


def _is_installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


# ---------------------------------------------------------------------------------------- Planetoid


def load_planetoid(name: str, data_dir: Path | None) -> NodeData:
    """Cora, Citeseer or Pubmed with the standard split and features normalised by row."""
    if _reader() == "torch_geometric":
        return _planetoid_of_pyg(name, data_dir)
    import dgl.data

    reader = getattr(dgl.data, f"{name.capitalize()}GraphDataset")
    folder = planetoid_folder(name, data_dir)
    if folder is None:
        return from_dgl(name, "Planetoid split, dgl.data", _first_graph(reader, data_dir))
    with tempfile.TemporaryDirectory() as scratch:  # a copy, because the loader writes its cache beside the raw files
        shutil.copytree(folder, Path(scratch) / folder.name)
        graph = _first_graph(reader, Path(scratch))
    return from_dgl(name, "Planetoid split, dgl.data", graph)


def _planetoid_of_pyg(name: str, data_dir: Path | None) -> NodeData:
    from torch_geometric.datasets import Planetoid
    from torch_geometric.io import read_planetoid_data

    folder = planetoid_folder(name, data_dir)
    if folder is None:
        data = Planetoid(str(data_dir or _PYG_FOLDER), name.capitalize())[0]
    else:
        data = read_planetoid_data(str(folder), PLANETOID[name])
    data.x = data.x / data.x.sum(1, keepdim=True).clamp(min=1)
    return _from_pyg(name, "Planetoid split, torch_geometric.datasets", data)


def _reader() -> str:
    """The library that reads or downloads a data set: the one that is installed, DGL if both are."""
    for library in ("dgl", "torch_geometric"):
        if _is_installed(library):
            return library
    raise DataError(
        f"DGL or torch_geometric is needed to read or download it, and neither is installed: `pip install torch_geometric`."
        f" {_without_network()}"
    )


def _from_pyg(name: str, source: str, data) -> NodeData:
    """NodeData of torch_geometric's Data with the three masks."""
    split = tuple(mask.nonzero().squeeze(1) for mask in (data.train_mask, data.val_mask, data.test_mask))
    return _assemble(name, source, *data.edge_index, data.x, data.y, split)


def planetoid_folder(name: str, data_dir: Path | None) -> Path | None:
    """The folder under `data_dir` with the raw Planetoid files of `name`, if there is one."""
    stem = PLANETOID[name]
    if data_dir is None or not data_dir.is_dir():
        return None
    found = sorted(path.parent for path in data_dir.glob(f"{stem}_*/ind.{stem}.allx"))
    return found[0] if found else None


def _first_graph(dataset_class, raw_dir: Path | None):
    return dataset_class(raw_dir=None if raw_dir is None else str(raw_dir), verbose=False)[0]


def from_dgl(name: str, source: str, graph) -> NodeData:
    """NodeData of a DGLGraph with feat, label and the three masks, named as in ``dgl.data``."""
    src, dst = graph.edges()
    masks = (graph.ndata[key].bool() for key in ("train_mask", "val_mask", "test_mask"))
    train, val, test = (mask.nonzero().squeeze(1) for mask in masks)
    return _assemble(name, source, src, dst, graph.ndata["feat"], graph.ndata["label"], (train, val, test))


def _assemble(name, source, src, dst, features, labels, split) -> NodeData:
    loops = torch.arange(features.shape[0], dtype=torch.int32)
    src, dst = src.int(), dst.int()
    keep = src != dst
    return NodeData(
        name,
        source,
        torch.cat([src[keep], loops]),
        torch.cat([dst[keep], loops]),
        features.float().contiguous(),
        labels.long(),
        *split,
        num_classes=int(labels.max()) + 1,
    )


# ------------------------------------------------------------------------------------ packaged Cora


def packaged(name: str) -> Path | None:
    """The folder of the Parquet files of `name` in ``graphdatascience``, if that and ``pyarrow`` are installed."""
    spec = importlib.util.find_spec("graphdatascience")  # does not import a top-level package
    if spec is None or not _is_installed("pyarrow"):
        return None
    for root in spec.submodule_search_locations or ():
        folder = Path(root) / "resources" / name
        if any(folder.glob(f"{name}_*.parquet.gzip")):
            return folder
    return None


def load_packaged_cora() -> NodeData:
    """Cora from the wheel, made undirected: 2,708 nodes, 10,556 directed edges, features normalised by row."""
    import pyarrow.parquet as parquet

    folder = packaged("cora")
    if folder is None:
        raise DataError(f"packaged Cora is not installed. {_without_network()}")
    nodes = parquet.ParquetFile(folder / "cora_nodes.parquet.gzip").read()
    links = parquet.ParquetFile(folder / "cora_rels.parquet.gzip").read()
    paper = torch.tensor(nodes["nodeId"].to_pylist())
    labels = torch.tensor(nodes["subject"].to_pylist())
    words = nodes["features"].combine_chunks().flatten().to_numpy()
    features = torch.from_numpy(words.astype("float32")).view(len(paper), -1)
    order = paper.argsort()
    cites = torch.tensor([links["sourceNodeId"].to_pylist(), links["targetNodeId"].to_pylist()])
    pair = order[torch.searchsorted(paper[order], cites)]
    # A link that is listed in both directions counts once per direction.
    src, dst = torch.unique(torch.cat([pair, pair.flip(0)], dim=1), dim=1)
    features = features / features.sum(1, keepdim=True).clamp(min=1)
    split = split_by_hash(paper.tolist(), labels)
    return _assemble("cora", "graphdatascience wheel, split by hash", src, dst, features, labels, split)


def split_by_hash(keys, labels: torch.Tensor, per_class: int = 20, num_val: int = 500, num_test: int = 1000):
    """A deterministic split with Planetoid's sizes: (train, val, test) node ids.

    Nodes are sorted by the SHA-256 digest of their key (for Cora the paper's number). So the split depends neither on a
    random generator nor on the order of the file. The first `per_class` nodes of every class are for training. Of the
    rest the first `num_val` are for validation and the next `num_test` for testing. Accuracies are close to those of
    the Planetoid split, but not the same.
    """
    digests = [hashlib.sha256(str(key).encode()).digest() for key in keys]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    taken = [0] * (int(labels.max()) + 1)
    train, rest = [], []
    for node, label in zip(order, labels[order].tolist()):
        taken[label] += 1
        (train if taken[label] <= per_class else rest).append(node)
    parts = (train, rest[:num_val], rest[num_val : num_val + num_test])
    return tuple(torch.tensor(part, dtype=torch.int64) for part in parts)


# --------------------------------------------------------------------------------------- downloaded


def load_reddit(name: str, data_dir: Path | None) -> NodeData:
    """Reddit, 232,965 posts and about 114 million edges: the graph of DGL's mixed-precision guide."""
    if _reader() == "torch_geometric":
        from torch_geometric.datasets import Reddit

        return _from_pyg(name, "torch_geometric.datasets", Reddit(str((data_dir or _PYG_FOLDER) / "Reddit"))[0])
    import dgl.data

    return from_dgl(name, "dgl.data", _first_graph(dgl.data.RedditDataset, data_dir))


def load_arxiv(name: str, data_dir: Path | None) -> NodeData:
    """ogbn-arxiv made undirected, with the split of the Open Graph Benchmark."""
    dataset = _ogb_dataset(name, data_dir)
    graph, labels = dataset[0]
    index = dataset.get_idx_split()
    split = tuple(torch.from_numpy(index[part]) for part in ("train", "valid", "test"))
    one_way = torch.from_numpy(graph["edge_index"])
    num_nodes = int(graph["num_nodes"])
    src, dst = torch.cat([one_way, one_way.flip(0)], dim=1)
    key = torch.unique(src * num_nodes + dst)  # an edge that exists in both directions counts once per direction
    features, labels = torch.from_numpy(graph["node_feat"]), torch.from_numpy(labels).squeeze(1)
    return _assemble(name, "ogb", key // num_nodes, key % num_nodes, features, labels, split)


def load_ogb_edges(name: str, data_dir: Path | None) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(src, dst, number of nodes) of a data set of `OGB`. Features are not loaded."""
    graph, _ = _ogb_dataset(name, data_dir)[0]
    src, dst = torch.from_numpy(graph["edge_index"])
    return src, dst, int(graph["num_nodes"])


def _ogb_dataset(name: str, data_dir: Path | None):
    if not _is_installed("ogb"):
        raise DataError(f"data set {name!r} is read by the package ogb, which is not installed: pip install ogb")
    from ogb.nodeproppred import NodePropPredDataset

    return NodePropPredDataset(name, root=str(data_dir or Path.home() / ".cache" / "ogb"))
