"""A random graph with MAG240M's schema at any scale, written in MAG240M's layout: see `make_synthetic`.

It replaces the real data, whose features alone take 187 GB, for tests of sampling, memory and speed. Its accuracy shows
that training works. It says nothing about the real data.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import torch
from datasets import DataError

from .files import create_npy, make_once
from .layout import (
    AFFILIATED,
    CITES,
    FOLDER,
    SYNTHETIC_RECIPE,
    WRITES,
    edge_file,
    feature_file,
    label_file,
    read_recipe,
)

# Sizes of the real data (Hu et al., OGB-LSC, 2021). The test papers are those of test-dev.
NODES = {"paper": 121_751_666, "author": 122_383_112, "institution": 25_721}
EDGES = {WRITES: 386_022_720, AFFILIATED: 44_592_586, CITES: 1_297_748_926}
LABELLED = {"train": 1_112_392, "valid": 138_949, "test": 88_092}

MIN_PAPERS = 1000
MIN_LABELLED = 20  # papers per part of the split, at any scale
HOMOPHILY = 0.6  # share of links that go to the same topic; the others go to any topic
SKEW = 2.0  # the r-th most popular node of n is chosen with density ~ r^(1/SKEW - 1): in-degrees fall off as d^-3
MISLABELLED = 0.1  # share of papers with the label of any topic, so that no model is always right
SIGNAL = 0.1  # standard deviation of topics' centres in features; that of papers about their centre is 1
CHUNK = 2**14  # nodes at a time: at most 50 MB of features in float32
VERSION = 1  # of the data; increase it when the same seed gives other data


def make_synthetic(root, scale: float = 0.001, seed: int = 0, num_features: int = 768, num_classes: int = 153) -> Path:
    """Makes `root`/mag240m_kddcup2021 and returns it. If it already exists, checks that it was made with these
    arguments.

    scale: factor on the real data's numbers of nodes, edges and labelled papers. 0.001 gives 122 thousand papers and
    187 MB of features. Each part of the split has at least 20 papers. Numbers of edges are drawn. Removing duplicates
    makes them lower: at 0.001 by 3 % for citations and 15 % for affiliations. The same arguments and version of NumPy
    give the same files.

    Every paper and author has one of `num_classes` topics, whose sizes fall as 1 / sqrt(rank). The features of a paper
    are the centre of its topic plus noise that almost hides it. Citations, authors and institutions prefer their own
    topic, so means over neighbours show it. Out-degrees follow a power law. So does the choice of cited papers and of
    institutions within a topic. One label in ten is drawn at random.

    Features are written in chunks of rows and are never completely in memory. Some tens of bytes per node are, and the
    edges of one relation as int64 keys. The directory appears when it is complete: see `files.make_once`. It has
    everything that ``ogb`` reads, except the years of papers.

    Raises ValueError for impossible arguments, and DataError if `root` holds other data or cannot be written.
    """
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale is {scale}; expected a finite number > 0")
    if round(scale * NODES["paper"]) < MIN_PAPERS:
        least = MIN_PAPERS / NODES["paper"]
        raise ValueError(
            f"scale is {scale}, {round(scale * NODES['paper'])} papers; expected at least {MIN_PAPERS}, scale >= {least:.2g}"
        )
    if seed < 0 or num_features < 1 or not 2 <= num_classes <= 1000:
        raise ValueError(
            f"seed is {seed}, num_features {num_features}, num_classes {num_classes}; expected seed >= 0, num_features >= 1 and"
            " num_classes from 2 to 1000"
        )
    recipe = {
        "version": VERSION,
        "scale": scale,
        "seed": seed,
        "num_features": num_features,
        "num_classes": num_classes,
    }
    folder = Path(root) / FOLDER
    make_once(folder, lambda partial: _write(partial, recipe))
    found = read_recipe(folder)
    if found != recipe:
        holds = "no synthetic data" if found is None else f"synthetic data of {found}"
        raise DataError(f"{folder} holds {holds}; expected {recipe}. Name another directory, or delete it")
    return folder


def _write(folder: Path, recipe: dict) -> None:
    scale, num_classes = recipe["scale"], recipe["num_classes"]
    num_nodes = {kind: max(1, round(scale * count)) for kind, count in NODES.items()}
    degree = {edge_type: scale * count / num_nodes[edge_type[0]] for edge_type, count in EDGES.items()}
    # Each part has its own stream of random numbers, so that a change of one part does not change the others.
    topics, writes, affiliated, cites, features, labels = (np.random.default_rng([recipe["seed"], i]) for i in range(6))
    papers = Topics(topics, num_nodes["paper"], num_classes)
    author_topic = papers.of[topics.integers(num_nodes["paper"], size=num_nodes["author"])]

    degrees = _degrees(writes, num_nodes["author"], degree[WRITES], at_least=1)
    _write_edges(
        edge_file(folder, WRITES), degrees, num_nodes["paper"], lambda src: papers.pick(writes, author_topic[src])
    )
    degrees = _degrees(affiliated, num_nodes["author"], degree[AFFILIATED])
    institutions = Institutions(papers, num_nodes["institution"])
    _write_edges(
        edge_file(folder, AFFILIATED),
        degrees,
        num_nodes["institution"],
        lambda src: institutions.pick(affiliated, author_topic[src]),
    )
    degrees = _degrees(cites, num_nodes["paper"], degree[CITES])
    _write_edges(
        edge_file(folder, CITES),
        degrees,
        num_nodes["paper"],
        lambda src: papers.pick(cites, papers.of[src], SKEW),
        loops=False,
    )
    _write_features(feature_file(folder, "paper"), features, papers, recipe["num_features"])
    split = _write_labels(label_file(folder), labels, papers, scale)
    torch.save({**num_nodes, "num_classes": num_classes}, folder / "meta.pt")
    torch.save(split, folder / "split_dict.pt")
    (folder / "RELEASE_v1.txt").write_text("")  # without it ogb takes the directory for an old release
    (folder / SYNTHETIC_RECIPE).write_text(json.dumps(recipe))


class Topics:
    """The topic of every paper, and the choice of papers by topic.

    of: int16 (N,), the topic of each paper. order: papers sorted by topic, in random order within a topic. The papers
    of topic t begin at start[t].
    """

    def __init__(self, rng: np.random.Generator, num_papers: int, num_topics: int):
        share = np.arange(1, num_topics + 1) ** -0.5
        bounds = np.cumsum(share / share.sum())[:-1]
        self.num_topics = num_topics
        self.of = np.searchsorted(bounds, rng.random(num_papers), side="right").astype(np.int16)
        shuffled = rng.permutation(num_papers)
        self.order = shuffled[self.of[shuffled].argsort(kind="stable")]
        self.start = np.concatenate([[0], np.bincount(self.of, minlength=num_topics).cumsum()])

    def mixed(self, rng: np.random.Generator, topic: np.ndarray) -> np.ndarray:
        """Topics to link to: `topic` itself or, for a share of 1 - HOMOPHILY, the topic of a random paper."""
        anything = self.of[rng.integers(len(self.of), size=len(topic))]
        return np.where(rng.random(len(topic)) < HOMOPHILY, topic, anything)

    def pick(self, rng: np.random.Generator, topic: np.ndarray, skew: float = 1.0) -> np.ndarray:
        """One paper for each entry of `topic`, which must have papers. skew > 1 favours some papers of a topic."""
        topic = self.mixed(rng, topic)
        return self.order[_ranked(rng, self.start[topic], self.start[topic + 1], skew)]


class Institutions:
    """The choice of institutions by topic. Each topic has a few institutions, or shares one if there are more topics
    than institutions."""

    def __init__(self, papers: Topics, num_institutions: int):
        self.papers = papers
        self.start = np.arange(papers.num_topics + 1) * num_institutions // papers.num_topics

    def pick(self, rng: np.random.Generator, topic: np.ndarray) -> np.ndarray:
        topic = self.papers.mixed(rng, topic)
        return _ranked(rng, self.start[topic], np.maximum(self.start[topic + 1], self.start[topic] + 1), SKEW)


def _ranked(rng: np.random.Generator, start: np.ndarray, end: np.ndarray, skew: float) -> np.ndarray:
    """Integers from [start, end). Small ones are more likely."""
    return start + ((end - start) * rng.random(len(start)) ** skew).astype(np.int64)


def _degrees(rng: np.random.Generator, count: int, mean: float, at_least: int = 0) -> np.ndarray:
    """int64 (count,): a power law with density ~ d^-3 for large d and with the expected value `mean`."""
    drawn = at_least + max(0.0, mean - at_least) * rng.pareto(2.0, count)
    return np.floor(drawn + rng.random(count)).astype(np.int64)


def _write_edges(path: Path, degrees: np.ndarray, num_dst: int, pick, loops: bool = True) -> None:
    """Writes an edge_index.npy, sorted by source and without duplicates. Node u has degrees[u] draws of
    pick(sources)."""
    chunks = []
    for first in range(0, len(degrees), CHUNK):
        part = np.minimum(degrees[first : first + CHUNK], num_dst)
        src = np.repeat(np.arange(first, first + len(part)), part)
        dst = pick(src)
        keys = src * num_dst + dst
        chunks.append(np.unique(keys if loops else keys[src != dst]))
    edges = create_npy(path, np.int64, (2, sum(map(len, chunks))))
    first = 0
    for keys in chunks:
        last = first + len(keys)
        np.divmod(keys, num_dst, out=(edges[0, first:last], edges[1, first:last]))
        first = last
    edges.flush()


def _write_features(path: Path, rng: np.random.Generator, papers: Topics, num_features: int) -> None:
    centres = SIGNAL * rng.standard_normal((papers.num_topics, num_features), dtype=np.float32)
    features = create_npy(path, np.float16, (len(papers.of), num_features))
    for first in range(0, len(features), CHUNK):
        topic = papers.of[first : first + CHUNK]
        features[first : first + CHUNK] = centres[topic] + rng.standard_normal(
            (len(topic), num_features), dtype=np.float32
        )
    features.flush()


def _write_labels(path: Path, rng: np.random.Generator, papers: Topics, scale: float) -> dict[str, np.ndarray]:
    """Writes node_label.npy, float32 with NaN for most papers, and returns the split."""
    sizes = [max(MIN_LABELLED, round(scale * count)) for count in LABELLED.values()]
    chosen = rng.permutation(len(papers.of))[: sum(sizes)]
    label = papers.of[chosen].astype(np.float32)
    other = rng.random(len(chosen)) < MISLABELLED
    label[other] = rng.integers(papers.num_topics, size=int(other.sum()))
    labels = create_npy(path, np.float32, (len(papers.of),))
    labels[:] = np.nan
    labels[chosen] = label
    labels.flush()
    return {key: np.sort(ids) for key, ids in zip(LABELLED, np.split(chosen, np.cumsum(sizes)[:-1]))}
