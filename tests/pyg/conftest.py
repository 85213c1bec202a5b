import pytest

import halfgnn.pyg


@pytest.fixture(autouse=True)
def _clean():
    halfgnn.pyg.unpatch()
    halfgnn.pyg.reset_stats()
    yield
    halfgnn.pyg.unpatch()
