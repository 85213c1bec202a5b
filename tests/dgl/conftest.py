import pytest

import halfgnn
import halfgnn.dgl


@pytest.fixture(autouse=True)
def _clean():
    halfgnn.dgl.unpatch()
    halfgnn.dgl.reset_stats()
    yield
    halfgnn.dgl.unpatch()


@pytest.fixture
def patched():
    halfgnn.dgl.patch()
