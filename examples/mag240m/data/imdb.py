"""IMDB without a network, from the PyPI wheel ``graphdatascience``."""

from __future__ import annotations

from pathlib import Path

import datasets
import numpy as np
import torch
from datasets import DataError

from .heterodata import EdgeType, HeteroData

NODE_FILES = {"movie": ("movies_with_genre", "movies_without_genre"), "director": ("directors",), "actor": ("actors",)}
# File: (type of sourceNodeId, relation to the movie, relation from the movie).
LINK_FILES = {"acted_in": ("actor", "acts-in", "acted-by"), "directed_in": ("director", "directs", "directed-by")}
PER_CLASS = 100


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
    for kind, files in NODE_FILES.items():
        nodes = [_nodes(_file(folder, name)) for name in files]
        ids[kind], order = torch.cat([keys for keys, _ in nodes]).sort()
        features[kind] = torch.cat([words for _, words in nodes])[order]
        if (ids[kind].diff() == 0).any():
            raise DataError(f"{folder}: a nodeId of type {kind} occurs twice; expected distinct ids")
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, (kind, there, back) in LINK_FILES.items():
        path = _file(folder, name)
        links = _parquet(path, "sourceNodeId", "targetNodeId")
        src = _positions(links["sourceNodeId"], ids[kind], f"{path}: sourceNodeId", kind)
        dst = _positions(links["targetNodeId"], ids["movie"], f"{path}: targetNodeId", "movie")
        edges[kind, there, "movie"] = (src, dst)
        edges["movie", back, kind] = (dst, src)
    labels, (train, val, test) = _labels(_file(folder, "movies_with_genre"), ids["movie"])
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


def _file(folder: Path, name: str) -> Path:
    return folder / f"imdb_{name}.parquet.gzip"


def _nodes(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """nodeId (N,) and plot_keywords as float16 (N, D), from a file of nodes."""
    nodes = _parquet(path, "nodeId", "plot_keywords")
    words = nodes["plot_keywords"].combine_chunks()
    widths = np.unique(np.diff(words.offsets.to_numpy()))
    if len(widths) != 1:
        raise DataError(f"{path}: plot_keywords has {widths.tolist()} values per node; expected one width")
    features = words.flatten().to_numpy().astype("float16").reshape(len(words), -1)
    return torch.from_numpy(nodes["nodeId"].to_numpy().astype("int64")), torch.from_numpy(features)


def _labels(path: Path, movies: torch.Tensor):
    """labels (number of movies,) and (train, val, test), which are in this order in the file."""
    nodes = _parquet(path, "nodeId", "genre")
    genre = torch.from_numpy(nodes["genre"].to_numpy().astype("int64"))
    index = _positions(nodes["nodeId"], movies, f"{path}: nodeId", "movie")
    labels = torch.full((len(movies),), -1)
    labels[index] = genre
    if int(genre.min()) < 0 or int(genre.max()) > 2:
        raise DataError(f"{path}: genre runs from {int(genre.min())} to {int(genre.max())}; expected 0 to 2")
    size = 3 * PER_CLASS
    parts = [index[:size], index[size : 2 * size], index[2 * size :]]
    for part, rows in zip(parts[:2], ("first", "second")):
        if labels[part].bincount(minlength=3).tolist() != [PER_CLASS] * 3:
            found = labels[part].bincount(minlength=3).tolist()
            raise DataError(
                f"{path}: the {rows} {size} rows have {found} movies per genre; expected {PER_CLASS} each, as in the paper"
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
