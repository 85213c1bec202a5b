"""Results of two processes that several files look at."""

import pytest

from tests.distributed import support_distributed as processes


@pytest.fixture(scope="package")
def parts_of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    processes.write_parts(folder, 2)
    return folder


@pytest.fixture(scope="package")
def found_of_two(parts_of_two):
    return processes.run(processes.exchanged, parts_of_two, 2)
