"""The modules of examples/ can be imported by their names, as in the programs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))


@pytest.fixture(scope="module")
def graph_folder(tmp_path_factory):
    """A graph with MAG240M's schema, 12 features and 5 classes."""
    from mag240m.data import make_synthetic

    return make_synthetic(tmp_path_factory.mktemp("mag") / "data", 0.00005, 0, num_features=12, num_classes=5)


@pytest.fixture
def folder(tmp_path):
    """A directory in MAG240M's layout with five papers."""
    from tests.examples.mag240m_directory import write_mag240m

    folder = tmp_path / "mag240m_kddcup2021"
    write_mag240m(folder)
    return folder
