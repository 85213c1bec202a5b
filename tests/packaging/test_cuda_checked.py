"""When `make test` leaves the CUDA half alone."""

import json
import re
import shutil
import subprocess

import pytest

import build_sources
from tests import cuda_checked
from tests.cuda_checked import RECORD, ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="the sources are not here")


def included(file):
    """Files of this project that a C++ file includes."""
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.MULTILINE):
        for folder in (file.parent, ROOT / "csrc", ROOT, ROOT / "tests" / "simt" / "include"):
            if (folder / name).is_file():
                yield (folder / name).resolve()


def test_all_that_is_compiled_is_an_input():
    inputs = {ROOT / path for path in cuda_checked.inputs()}
    sources = [*build_sources.operators(), *build_sources.cuda_bindings(), *build_sources.yardsticks()]
    kernels = [*build_sources.cuda_kernels(), *build_sources.cuda_yardsticks()[1]]  # written, of headers
    left = [
        *sources,
        *kernels,
        *(ROOT / "tests" / "simt").glob("*.c*"),
        *(ROOT / "tests" / "machine_code").glob("*.cu"),
    ]
    seen = set()
    while left:
        file = left.pop().resolve()
        if file not in seen:
            seen.add(file)
            left += included(file)
    written = {file for file in seen if (ROOT / "build") in file.parents}
    assert len(written) >= len(build_sources.FAMILIES) and len(seen - written) > 100
    assert seen - written - inputs == set()


@pytest.fixture
def root(tmp_path):
    """A few of the inputs, recorded as checked."""
    for path in (
        "csrc/core/types.h",
        "tests/simt/run.py",
        "halfgnn/ops/spmm.py",
        "build_sources.py",
        "csrc/cpu/threads.h",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    (tmp_path / RECORD).write_text(json.dumps({"commit": "", "digest": cuda_checked.current(tmp_path)}))
    return tmp_path


def must_check(root, gpus=()):
    return cuda_checked.must_check(root, gpus)


def test_it_is_left_alone_until_an_input_changes(root):
    assert not must_check(root)
    (root / "csrc/cpu/threads.h").write_text("")
    assert not must_check(root)
    for path in cuda_checked.inputs(root):
        before = (root / path).read_bytes()
        (root / path).write_bytes(before + b"\n")
        assert must_check(root), path
        (root / path).write_bytes(before)
    assert not must_check(root)


def test_it_is_checked_with_a_gpu_or_another_file_or_without_a_record(root):
    assert must_check(root, [str(root / "build_sources.py")])
    (root / "csrc/core/more.h").write_text("")
    assert must_check(root)
    (root / "csrc/core/more.h").rename(root / "csrc/core/another.h")
    assert must_check(root)
    (root / "csrc/core/another.h").unlink()
    assert not must_check(root)
    (root / RECORD).unlink()
    assert must_check(root)


def test_the_record_is_of_a_commit():
    """What it says was checked are the inputs of the commit that it names."""
    fields = json.loads((ROOT / RECORD).read_text())

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)

    if git("cat-file", "-e", f"{fields['commit']}^{{commit}}").returncode != 0:
        pytest.skip("the history is not here")
    names = git("ls-tree", "-r", "--name-only", fields["commit"]).stdout.decode().splitlines()
    matching = [path for path in names if cuda_checked.is_input(path)]
    assert (
        cuda_checked.digest(matching, lambda path: git("show", f"{fields['commit']}:{path}").stdout) == fields["digest"]
    )
