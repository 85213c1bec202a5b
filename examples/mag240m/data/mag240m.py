"""MAG240M of the Open Graph Benchmark's large-scale challenge (Hu et al., OGB-LSC, 2021), read from its directory without
``ogb``."""

from __future__ import annotations

import operator
import os
from pathlib import Path

import numpy as np
import torch
from datasets import DataError

from .edges import read_edges, undirected
from .files import load_pickle, open_npy
from .heterodata import EdgeType, HeteroData
from .layout import CITES, LINKS, describe, edge_file, feature_file, find_folder, label_file
from .means import mean_features

DEFAULT_MEMORY = 2**30


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
    folder = find_folder(Path(where))
    num_nodes, num_classes = _read_meta(folder / "meta.pt")
    papers = feature_file(folder, "paper")
    width = open_npy(papers, (np.float16,), (num_nodes["paper"], None)).shape[1]
    labels = _read_labels(label_file(folder), num_nodes["paper"], num_classes)
    train, val, test = _read_split(folder / "split_dict.pt", labels)
    edges: dict[EdgeType, tuple[torch.Tensor, torch.Tensor]] = {}
    for (src_type, relation, dst_type), back in LINKS.items():
        path = edge_file(folder, (src_type, relation, dst_type))
        src, dst = read_edges(path, num_nodes[src_type], num_nodes[dst_type])
        edges[src_type, relation.replace("_", "-"), dst_type] = (src, dst)
        edges[dst_type, back, src_type] = (dst, src)
    edges[CITES] = undirected(edge_file(folder, CITES), num_nodes["paper"])
    features: dict[str, Path | torch.Tensor] = {"paper": papers}
    for edge_type in (("paper", "written-by", "author"), ("author", "affiliated-with", "institution")):
        source, target = feature_file(folder, edge_type[0]), feature_file(folder, edge_type[2])
        features[edge_type[2]] = mean_features(
            source, target, edges[edge_type], (num_nodes[edge_type[2]], width), memory
        )
    return HeteroData(
        name="mag240m",
        source=describe(folder),
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


def _read_meta(path: Path) -> tuple[dict[str, int], int]:
    """The number of nodes of every type, and the number of classes."""
    meta = load_pickle(path)
    counts = {}
    for key in ("paper", "author", "institution", "num_classes"):
        try:
            counts[key] = operator.index(meta.get(key))
        except TypeError:
            counts[key] = 0
        if counts[key] < 1:
            raise DataError(f"{path} has {key} = {meta.get(key)!r}; expected a positive integer")
    return counts, counts.pop("num_classes")


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
    split = load_pickle(path)
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
