import os
import shutil

import pytest

from .planners import CXX, Planners, compile_planners


@pytest.fixture(scope="session")
def planners(tmp_path_factory):
    if shutil.which(CXX) is None and os.environ.get("CI", "").lower() in ("", "0", "false"):
        pytest.skip(f"there is no {CXX}")
    return Planners(compile_planners(tmp_path_factory.mktemp("plan")))
