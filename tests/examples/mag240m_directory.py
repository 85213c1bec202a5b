"""A small directory in MAG240M's layout, and what its tests compare."""

import numpy as np
import torch

NAN = float("nan")
WRITES, WRITTEN = ("author", "writes", "paper"), ("paper", "written-by", "author")
AFFILIATED, AFFILIATES = ("author", "affiliated-with", "institution"), ("institution", "affiliates", "author")
CITES = ("paper", "cites", "paper")


def pairs(edges):
    return list(zip(*(ids.tolist() for ids in edges)))


def array(data, kind):
    return np.load(data.features[kind])


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def write_mag240m(folder):
    """Five papers, three authors, two institutions, in the format of ogb."""
    features = np.random.default_rng(0).standard_normal((5, 6)).astype("float16")
    arrays = {
        "paper/node_feat": features,
        "paper/node_label": np.array([2, NAN, 0, 1, NAN], dtype="float32"),
        "author___writes___paper/edge_index": np.array([[0, 0, 1], [1, 4, 4]]),
        "author___affiliated_with___institution/edge_index": np.array([[0, 1], [1, 1]]),
        # A citation in both directions, a repeated one, and a self-citation.
        "paper___cites___paper/edge_index": np.array([[0, 1, 2, 2, 3], [1, 0, 4, 4, 3]]),
    }
    for name, values in arrays.items():
        path = folder / "processed" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, values)
    torch.save({"paper": 5, "author": 3, "institution": 2, "num_classes": 3}, folder / "meta.pt")
    torch.save({"train": np.array([0]), "valid": np.array([2]), "test": np.array([1, 3])}, folder / "split_dict.pt")
    return features.astype("float64")
