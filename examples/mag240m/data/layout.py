"""The directory of MAG240M: names of its files, and the file that marks synthetic data."""

from __future__ import annotations

import json
from pathlib import Path

from datasets import DataError

from .heterodata import EdgeType

FOLDER = "mag240m_kddcup2021"  # the directory's name in ogb
SYNTHETIC_RECIPE = "synthetic.json"  # the arguments of `make_synthetic`, in the directories that it made
# Edge types that have a file. LINKS has the names of their reverse relations, which have none.
WRITES, AFFILIATED = ("author", "writes", "paper"), ("author", "affiliated_with", "institution")
CITES = ("paper", "cites", "paper")
LINKS = {WRITES: "written-by", AFFILIATED: "affiliates"}


def feature_file(folder: Path, kind: str) -> Path:
    return folder / "processed" / kind / "node_feat.npy"


def label_file(folder: Path) -> Path:
    return folder / "processed" / "paper" / "node_label.npy"


def edge_file(folder: Path, edge_type: EdgeType) -> Path:
    return folder / "processed" / "___".join(edge_type) / "edge_index.npy"


def find_folder(where: Path) -> Path:
    for folder in (where, where / FOLDER):
        if (folder / "meta.pt").is_file():
            return folder
    raise DataError(
        f'{str(where)!r} is neither "imdb" nor "synthetic" nor a directory with meta.pt or {FOLDER}/meta.pt'
    )


def describe(folder: Path) -> str:
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
