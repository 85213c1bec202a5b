import pytest

from halfgnn.nn import projections, relation_attention


@pytest.fixture(params=["first", "last"])
def projected(request, monkeypatch):
    """Whether sources are projected before they are gathered, or their sums afterwards."""
    monkeypatch.setattr(relation_attention, "_saves_to_project_last", lambda *args: request.param == "last")
    return request.param


@pytest.fixture
def always_padded(monkeypatch):
    monkeypatch.setattr(projections, "_padding_pays", lambda *args: True)
