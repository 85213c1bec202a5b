"""Heterogeneous graphs for node classification over sampled blocks, all with the same fields.

* IMDB without a network, from the PyPI wheel ``graphdatascience``: see `load_imdb`.
* MAG240M of the Open Graph Benchmark's large-scale challenge (Hu et al., OGB-LSC, 2021), read from its directory without
  ``ogb``: see `load_mag240m`.
* A synthetic graph with MAG240M's schema at any scale, in the same layout: see ``mag240m_synthetic.py``.

Every relation has both directions, as two edge types.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import operator
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch
from datasets import DataError

EdgeType = tuple[str, str, str]  # source type, relation, destination type
DEFAULT_MEMORY = 2**30


@dataclass
class HeteroData:
    """A graph of several node and edge types. One node type has labels.

    edges: edge type -> (src, dst), int64 (E,) each, on the CPU. Some are copy-on-write memory maps of a file.
    features: node type -> float16 (N, D), a tensor or the path of a .npy file to be memory-mapped.
    target: the node type with labels.
    labels: int64 (N of target,), -1 if unknown.
    train, val, test: int64 ids of target nodes. Those of train and val have labels.
    source: the source of the data, in words.
    """

    name: str
    source: str
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]]
    num_nodes: dict[str, int]
    features: dict[str, Path | torch.Tensor]
    target: str
    labels: torch.Tensor
    train: torch.Tensor
    val: torch.Tensor
    test: torch.Tensor
    num_classes: int

    def graph(self):
        """A new DGLGraph on the CPU. It has its edges only in CSC, the format that neighbour sampling reads.

        Ids are int64, because from a graph with int32 ids the samplers of dgl 1.1.3 make blocks on the CPU whose ids
        are out of range. Edges are stored in CSC order, so edge ids are not positions in `edges`. While an edge type is
        converted, its edges are in memory twice.

        Raises ValueError for ids that are not nodes.
        """
        import dgl

        formats = {}
        for edge_type, (src, dst) in self.edges.items():
            num_src, num_dst = self.num_nodes[edge_type[0]], self.num_nodes[edge_type[2]]
            csc = _sorted_graph(src, dst, num_src, num_dst, torch.int64).csc()
            formats[edge_type] = ("csc", (csc.indptr, csc.indices, torch.empty(0, dtype=torch.int64)))
        return dgl.heterograph(formats, num_nodes_dict=self.num_nodes)


def load(
    where: str | os.PathLike,
    *,
    data_dir: str | os.PathLike | None = None,
    scale: float = 0.001,
    seed: int = 0,
    memory: int = DEFAULT_MEMORY,
) -> HeteroData:
    """Loads "imdb", "synthetic", or a directory in MAG240M's layout.

    data_dir: the folder for synthetic data; default: ``~/.cache/halfgnn``. scale, seed: of the synthetic data. memory:
    see `load_mag240m`.

    Raises DataError if the data is missing or wrong, and ValueError for an impossible scale, seed or memory.
    """
    if where == "imdb":
        return load_imdb()
    if where != "synthetic":
        return load_mag240m(where, memory)
    from mag240m_synthetic import synthetic

    parent = data_dir or Path.home() / ".cache" / "halfgnn"
    root = Path(parent) / f"mag240m-synthetic-scale{scale}-seed{seed}"
    return load_mag240m(synthetic(root, scale, seed), memory)


def _idtype(*counts: int) -> torch.dtype:
    return torch.int32 if max(counts) < 2**31 else torch.int64


def _sorted_graph(src, dst, num_src: int, num_dst: int, idtype: torch.dtype):
    """A halfgnn.Graph of these edges in CSC order."""
    from halfgnn import Graph

    graph, _ = Graph.from_edges(src.to(idtype), dst.to(idtype), num_src=num_src, num_dst=num_dst, sort=True)
    return graph


# --------------------------------------------------------------------------------------------- IMDB

IMDB_NODES = {"movie": ("movies_with_genre", "movies_without_genre"), "director": ("directors",), "actor": ("actors",)}
# File: (type of sourceNodeId, relation to the movie, relation from the movie).
IMDB_LINKS = {"acted_in": ("actor", "acts-in", "acted-by"), "directed_in": ("director", "directs", "directed-by")}
IMDB_PER_CLASS = 100


def load_imdb() -> HeteroData:
    """IMDB from the wheel: 4,661 movies, 2,270 directors and 5,841 actors, 13,983 and 4,661 links, 1,256 plot keywords
    per node.

    It is the graph of Graph Transformer Networks (Yun et al., NeurIPS 2019). 2,939 movies have one of three genres.
    Features are 0 or 1 (the keywords of a movie, or of all movies of a director or an actor). They are exact in float16
    and not normalised.

    The order of the wheel's rows is the split of that paper: 100 movies per genre for training, 100 per genre for
    validation, and the other 2,339 for testing. The paper reports macro F1.
    """
    folder = datasets.packaged("imdb")
    if folder is None:
        raise DataError(f"packaged IMDB is not installed: {datasets.INSTALL_PACKAGED} bring it")
    ids, features = {}, {}
    for kind, files in IMDB_NODES.items():
        nodes = [_imdb_nodes(_imdb_file(folder, name)) for name in files]
        ids[kind], order = torch.cat([keys for keys, _ in nodes]).sort()
        features[kind] = torch.cat([words for _, words in nodes])[order]
        if (ids[kind].diff() == 0).any():
            raise DataError(f"{folder}: a nodeId of type {kind} occurs twice; expected distinct ids")
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, (kind, there, back) in IMDB_LINKS.items():
        path = _imdb_file(folder, name)
        links = _parquet(path, "sourceNodeId", "targetNodeId")
        src = _positions(links["sourceNodeId"], ids[kind], f"{path}: sourceNodeId", kind)
        dst = _positions(links["targetNodeId"], ids["movie"], f"{path}: targetNodeId", "movie")
        edges[kind, there, "movie"] = (src, dst)
        edges["movie", back, kind] = (dst, src)
    labels, (train, val, test) = _imdb_labels(_imdb_file(folder, "movies_with_genre"), ids["movie"])
    return HeteroData(
        name="imdb",
        source="graphdatascience wheel, split of Graph Transformer Networks",
        edges=edges,
        num_nodes={kind: len(keys) for kind, keys in ids.items()},
        features=dict(features),
        target="movie",
        labels=labels,
        train=train,
        val=val,
        test=test,
        num_classes=3,
    )


def _imdb_file(folder: Path, name: str) -> Path:
    return folder / f"imdb_{name}.parquet.gzip"


def _imdb_nodes(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """nodeId (N,) and plot_keywords as float16 (N, D), from a file of nodes."""
    nodes = _parquet(path, "nodeId", "plot_keywords")
    words = nodes["plot_keywords"].combine_chunks()
    widths = np.unique(np.diff(words.offsets.to_numpy()))
    if len(widths) != 1:
        raise DataError(f"{path}: plot_keywords has {widths.tolist()} values per node; expected one width")
    features = words.flatten().to_numpy().astype("float16").reshape(len(words), -1)
    return torch.from_numpy(nodes["nodeId"].to_numpy().astype("int64")), torch.from_numpy(features)


def _imdb_labels(path: Path, movies: torch.Tensor):
    """labels (number of movies,) and (train, val, test), which are in this order in the file."""
    nodes = _parquet(path, "nodeId", "genre")
    genre = torch.from_numpy(nodes["genre"].to_numpy().astype("int64"))
    index = _positions(nodes["nodeId"], movies, f"{path}: nodeId", "movie")
    labels = torch.full((len(movies),), -1)
    labels[index] = genre
    if int(genre.min()) < 0 or int(genre.max()) > 2:
        raise DataError(f"{path}: genre runs from {int(genre.min())} to {int(genre.max())}; expected 0 to 2")
    size = 3 * IMDB_PER_CLASS
    parts = [index[:size], index[size : 2 * size], index[2 * size :]]
    for part, rows in zip(parts[:2], ("first", "second")):
        if labels[part].bincount(minlength=3).tolist() != [IMDB_PER_CLASS] * 3:
            found = labels[part].bincount(minlength=3).tolist()
            raise DataError(
                f"{path}: the {rows} {size} rows have {found} movies per genre; expected {IMDB_PER_CLASS} each, as in the paper"
            )
    return labels, [part.sort().values for part in parts]


def _parquet(path: Path, *columns: str):
    """A table with these columns."""
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(path).read()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; expected a Parquet file with the columns {', '.join(columns)}") from error
    except Exception as error:  # pyarrow raises errors of its own, and OSError
        raise DataError(
            f"{path} cannot be read as a Parquet file ({error}); expected columns {', '.join(columns)}"
        ) from error
    if not set(columns) <= set(table.column_names):
        raise DataError(f"{path} has the columns {', '.join(table.column_names)}; expected {', '.join(columns)}")
    return table


def _positions(column, ids: torch.Tensor, what: str, kind: str) -> torch.Tensor:
    """Positions of a column's values in the sorted `ids`."""
    values = torch.from_numpy(column.to_numpy().astype("int64"))
    index = torch.searchsorted(ids, values).clamp(max=len(ids) - 1)
    wrong = values[ids[index] != values]
    if len(wrong):
        low, high = int(ids[0]), int(ids[-1])
        raise DataError(
            f"{what} holds {int(wrong[0])}, which is not a node of type {kind}; expected existing ids from {low} to {high}"
        )
    return index


# ------------------------------------------------------------------------------------------ MAG240M

MAG240M = "mag240m_kddcup2021"  # the directory's name in ogb
SYNTHETIC_RECIPE = "synthetic.json"  # the arguments of mag240m_synthetic.py, in the directories that it made
# Stored edge type: name of the reverse relation, which has no file.
WRITES, AFFILIATED = ("author", "writes", "paper"), ("author", "affiliated_with", "institution")
MAG240M_LINKS = {WRITES: "written-by", AFFILIATED: "affiliates"}
CITES = ("paper", "cites", "paper")


def load_mag240m(where: str | os.PathLike, memory: int = DEFAULT_MEMORY) -> HeteroData:
    """MAG240M, or data in its layout, from ``mag240m_kddcup2021/`` or from the directory that holds it. ``ogb`` is not
    needed.

    Edge types: (author, writes, paper), (paper, written-by, author), (author, affiliated-with, institution), (institution,
    affiliates, author), and (paper, cites, paper). Citations are made undirected and without duplicates. The features
    of an author are the mean over the author's papers, and those of an institution the mean over its authors, as in the
    challenge's baseline (snap-stanford/ogb, examples/lsc/mag240m/rgnn.py). Without any they are 0.

    These three are computed once and kept as .npy files in the directory: ``node_feat.npy`` in ``processed/author`` and
    ``processed/institution``, and ``undirected_edge_index.npy`` beside the citations. An interrupted run leaves no
    partial file. To compute a file again, delete it.

    memory: bytes of features in memory while means are computed, one chunk of columns at a time. Pages of memory-mapped
    files do not count, because the system can take them back. The edges of the relation need more memory. To make the
    citations undirected takes two int64 per citation, twice.

    Labels that are NaN become -1. Labels of test papers may be -1, because the challenge does not publish them. The
    test papers are those of "test-dev" if the split has it, otherwise of "test".

    Raises DataError, which names the file, if a file is missing, cut short or of another dtype or shape, for ids and
    labels out of range, and for training and validation papers without a label. Raises ValueError for memory < 1.
    """
    if memory < 1:
        raise ValueError(f"memory is {memory}; expected at least 1 byte")
    folder = _mag240m_folder(Path(where))
    num_nodes, num_classes = _read_meta(folder / "meta.pt")
    papers = feature_file(folder, "paper")
    width = open_npy(papers, (np.float16,), (num_nodes["paper"], None)).shape[1]
    labels = _read_labels(label_file(folder), num_nodes["paper"], num_classes)
    train, val, test = _read_split(folder / "split_dict.pt", labels)
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]] = {}
    for (src_type, relation, dst_type), back in MAG240M_LINKS.items():
        path = edge_file(folder, (src_type, relation, dst_type))
        src, dst = _edge_index(path, num_nodes[src_type], num_nodes[dst_type])
        edges[src_type, relation.replace("_", "-"), dst_type] = (src, dst)
        edges[dst_type, back, src_type] = (dst, src)
    edges[CITES] = _undirected(edge_file(folder, CITES), num_nodes["paper"])
    features: dict[str, Path | torch.Tensor] = {"paper": papers}
    for edge_type in (("paper", "written-by", "author"), ("author", "affiliated-with", "institution")):
        source, target = feature_file(folder, edge_type[0]), feature_file(folder, edge_type[2])
        features[edge_type[2]] = _mean_features(
            source, target, edges[edge_type], (num_nodes[edge_type[2]], width), memory
        )
    return HeteroData(
        name="mag240m",
        source=_describe(folder),
        edges=edges,
        num_nodes=num_nodes,
        features=features,
        target="paper",
        labels=labels,
        train=train,
        val=val,
        test=test,
        num_classes=num_classes,
    )


def feature_file(folder: Path, kind: str) -> Path:
    return folder / "processed" / kind / "node_feat.npy"


def label_file(folder: Path) -> Path:
    return folder / "processed" / "paper" / "node_label.npy"


def edge_file(folder: Path, edge_type: EdgeType) -> Path:
    return folder / "processed" / "___".join(edge_type) / "edge_index.npy"


def _mag240m_folder(where: Path) -> Path:
    for folder in (where, where / MAG240M):
        if (folder / "meta.pt").is_file():
            return folder
    raise DataError(
        f'{str(where)!r} is neither "imdb" nor "synthetic" nor a directory with meta.pt or {MAG240M}/meta.pt'
    )


def _describe(folder: Path) -> str:
    recipe = read_recipe(folder)
    if recipe is None:
        return f"MAG240M, {folder}"
    return f"synthetic, MAG240M's schema at scale {recipe.get('scale')}, seed {recipe.get('seed')}, {folder}"


def read_recipe(folder: Path) -> dict | None:
    """The arguments with which a directory of synthetic data was made; None for other directories."""
    path = folder / SYNTHETIC_RECIPE
    try:
        recipe = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} could not be read ({error}); expected JSON") from error
    if not isinstance(recipe, dict):
        raise DataError(f"{path} holds {recipe!r}; expected an object")
    return recipe


def _named(function: Callable, module: str, name: str) -> Callable:
    """The function under the name by which torch.load finds it. Older versions of torch do not take pairs (function,
    name)."""

    def call(*args):
        return function(*args)

    call.__module__, call.__name__, call.__qualname__ = module, name, name
    return call


@contextlib.contextmanager
def _safe_globals(allowed: list) -> Iterator[None]:
    """torch.serialization.safe_globals, which torch 2.4 lacks."""
    before = list(torch.serialization.get_safe_globals())
    torch.serialization.add_safe_globals(allowed)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _torch_load(path: Path) -> dict:
    """Reads a dictionary of numbers, arrays and tensors that torch.save wrote. Nothing else is unpickled."""
    rebuild, scalar = np.empty(0).__reduce__()[0], np.int64(0).__reduce__()[0]
    encode = _named(lambda text, _: text.encode("latin1"), "_codecs", "encode")  # bytes, as pickle writes them
    allowed = [encode, bytes, np.ndarray, np.dtype, *(type(np.dtype(kind)) for kind in "bhilqBHILQfde")]
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):  # NumPy 1, which wrote ogb's files, and NumPy 2
        allowed += [_named(rebuild, module, "_reconstruct"), _named(scalar, module, "scalar")]
    try:
        with _safe_globals(allowed):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; expected a dictionary written by torch.save") from error
    except Exception as error:  # torch.load raises anything from UnpicklingError to RuntimeError
        # The message also has advice, such as to switch the check off. Only the reason is kept.
        reason = str(error).rpartition("WeightsUnpickler error:")[2].strip().partition("\n")[0].partition(". ")[0][:200]
        raise DataError(
            f"{path} could not be read ({type(error).__name__}: {reason}); expected a dictionary written by torch.save"
        ) from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds a {type(found).__name__}; expected a dictionary")
    return found


def _read_meta(path: Path) -> tuple[dict[str, int], int]:
    """The number of nodes of every type, and the number of classes."""
    meta = _torch_load(path)
    counts = {}
    for key in ("paper", "author", "institution", "num_classes"):
        try:
            counts[key] = operator.index(meta.get(key))
        except TypeError:
            counts[key] = 0
        if counts[key] < 1:
            raise DataError(f"{path} has {key} = {meta.get(key)!r}; expected a positive integer")
    return counts, counts.pop("num_classes")


def open_npy(path: Path, dtypes: tuple, shape: tuple[int | None, ...], mode: str = "r") -> np.ndarray:
    """A .npy file as a memory map. It must have one of these dtypes and this shape, in which None is any number. mode:
    "r", or "c" for copy-on-write."""
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    expected = f"expected {' or '.join(np.dtype(dtype).name for dtype in dtypes)} of shape ({sizes})"
    try:
        array = np.lib.format.open_memmap(path, mode=mode)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; {expected}") from error
    except (ValueError, EOFError, OSError) as error:
        size = f"{path.stat().st_size} bytes" if path.is_file() else "no file"
        raise DataError(f"{path} ({size}) cannot be memory-mapped as .npy: {error}; {expected}") from error
    fits = len(array.shape) == len(shape) and all(size in (None, found) for size, found in zip(shape, array.shape))
    if array.dtype not in [np.dtype(dtype) for dtype in dtypes] or not fits:
        raise DataError(f"{path} holds {array.dtype} of shape {array.shape}; {expected}")
    return array


def create_npy(path: Path, dtype, shape: tuple[int, ...]) -> np.ndarray:
    """A new .npy file as a memory map to be written. Its space on the disk is allocated now, because a disk that fills
    up while a map is written ends the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def make_once(target: Path, write: Callable[[Path], None]) -> None:
    """Calls write(partial) to make a file or directory beside `target`, and renames it to `target` when it is complete.
    Does nothing if `target` exists. Removes what an interrupted run left. If there are several processes, one writes
    and the others wait.

    Raises DataError if nothing can be written.
    """
    if target.exists():
        return
    partial, lock = (target.with_name(f".{target.name}.{end}") for end in ("partial", "lock"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # the system releases it when the process ends, for any reason
            if target.exists():
                return
            _remove(partial)
            try:
                write(partial)
                partial.replace(target)
            except BaseException:
                _remove(partial)
                raise
            lock.unlink()  # a process that still waits for it will find the target
    except OSError as error:
        raise DataError(
            f"{target} could not be made ({error}). Data in a read-only directory can be used through a directory of symbolic links"
            " to its files (cp -rs)"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _derived(path: Path, dtype, shape: tuple[int | None, ...], mode: str = "r") -> np.ndarray:
    """Opens a file that was made from other files."""
    try:
        return open_npy(path, (dtype,), shape, mode)
    except DataError as error:
        raise DataError(f"{error}. It was made from the other files: delete it to make it again") from error


def _edge_index(path: Path, num_src: int, num_dst: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(src, dst) of an edge_index.npy."""
    return _checked_edges(open_npy(path, (np.int64, np.int32), (2, None), "c"), path, num_src, num_dst)


def _checked_edges(edges: np.ndarray, path: Path, num_src: int, num_dst: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of an edge index as int64 tensors; DataError for ids out of range."""
    src, dst = (torch.from_numpy(row).long() for row in edges)
    for row, (ids, bound) in enumerate(((src, num_src), (dst, num_dst))):
        low, high = (int(end) for end in torch.aminmax(ids)) if len(ids) else (0, 0)
        if low < 0 or high >= bound:
            raise DataError(f"{path}: row {row} holds the id {low if low < 0 else high}; expected ids in [0, {bound})")
    return src, dst


def _undirected(path: Path, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(src, dst) of an edge_index.npy with every edge in both directions and without duplicates, sorted by (dst, src).
    The result is kept beside the file."""

    def write(partial: Path) -> None:
        src, dst = (ids.numpy() for ids in _edge_index(path, num_nodes, num_nodes))
        keys = np.empty((2, len(src)), dtype=np.int64)
        for key, row, column in ((keys[0], dst, src), (keys[1], src, dst)):
            np.multiply(row, num_nodes, out=key)
            key += column
        keys = keys.reshape(-1)
        keys.sort()  # in place, unlike np.unique: at full size keys are 21 GB
        first = np.ones(len(keys), dtype=bool)
        np.not_equal(keys[1:], keys[:-1], out=first[1:])
        keys = keys[first]
        edges = create_npy(partial, np.int64, (2, len(keys)))
        np.divmod(keys, num_nodes, out=(edges[1], edges[0]))
        edges.flush()

    target = path.with_name("undirected_edge_index.npy")
    make_once(target, write)
    return _checked_edges(_derived(target, np.int64, (2, None), "c"), target, num_nodes, num_nodes)


def _mean_features(source: Path, target: Path, edges, shape: tuple[int, int], memory: int) -> Path:
    """`target`, float16 of `shape`: row v is the mean over edges (u, v) of the rows u of `source`."""

    def write(partial: Path) -> None:
        from halfgnn import ops

        inputs = open_npy(source, (np.float16,), (None, shape[1]))
        num_src, num_dst = len(inputs), shape[0]
        graph = _sorted_graph(*edges, num_src, num_dst, _idtype(num_src, num_dst, len(edges[0])))
        outputs = create_npy(partial, np.float16, shape)
        step = max(1, memory // (2 * (num_src + num_dst)))  # columns; a column has 2 bytes per node
        for first in range(0, shape[1], step):
            columns = slice(first, first + step)
            chunk = torch.from_numpy(np.array(inputs[:, columns], order="C"))
            outputs[:, columns] = ops.copy_u_mean(graph, chunk).numpy()
        outputs.flush()

    make_once(target, write)
    _derived(target, np.float16, shape)
    return target


def _read_labels(path: Path, num_nodes: int, num_classes: int) -> torch.Tensor:
    """int64 (num_nodes,). NaN and -1 in the file become -1."""
    dtypes = (np.float32, np.float64, np.float16, np.int64, np.int32, np.int16)
    found = torch.from_numpy(open_npy(path, dtypes, (num_nodes,), "c"))
    known = (found == found) & (found != -1)  # NaN differs from itself
    values = found[known]
    classes = values.long()
    wrong = (classes < 0) | (classes >= num_classes) | (classes != values)
    if wrong.any():
        raise DataError(
            f"{path} holds the label {values[wrong][0].item()}; expected whole numbers in [0, {num_classes}), or NaN"
        )
    labels = torch.full((num_nodes,), -1)
    labels[known] = classes
    return labels


def _read_split(path: Path, labels: torch.Tensor) -> list[torch.Tensor]:
    """train, val and test."""
    split = _torch_load(path)
    parts = []
    for key in ("train", "valid", "test-dev" if "test-dev" in split else "test"):
        if not isinstance(split.get(key), (np.ndarray, torch.Tensor)):
            raise DataError(f"{path} has {key} = {split.get(key)!r:.40}; expected an array of ids")
        ids = torch.as_tensor(split[key])
        if ids.dtype not in (torch.int64, torch.int32, torch.int16) or ids.dim() != 1:
            raise DataError(
                f"{path} has {key} = {ids.dtype} of shape {tuple(ids.shape)}; expected one dimension of int64"
            )
        ids = ids.long()
        if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(labels)):
            raise DataError(
                f"{path}: {key} runs from {int(ids.min())} to {int(ids.max())}; expected ids of papers in [0, {len(labels)})"
            )
        unknown = ids[labels[ids] < 0]
        if key in ("train", "valid") and len(unknown):
            raise DataError(f"{path}: {key} has the paper {int(unknown[0])}, which has no label")
        parts.append(ids)
    if not len(parts[0]):
        raise DataError(f"{path} has no training papers")
    return parts
