import pytest

import halfgnn.compiled
from halfgnn.compiled import thresholds


@pytest.fixture(autouse=True)
def lowers_small_graphs(monkeypatch):
    for name in ("MESSAGE", "SOFTMAX", "COUNT"):
        monkeypatch.setattr(thresholds, name, 0)
    halfgnn.compiled.reset_stats()
