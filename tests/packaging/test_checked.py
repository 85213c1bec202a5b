"""When `make test` leaves the CUDA back end and the instructions of CPU kernels alone."""

import json
import re
import shutil
import subprocess
import types

import pytest

import build_sources
from tests import checked
from tests.checked import PARTS, RECORD, ROOT

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="the sources are not here")


def included(file):
    """Files of this project that a C++ file includes."""
    for name in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', file.read_text(), re.MULTILINE):
        for folder in (file.parent, ROOT / "csrc", ROOT, ROOT / "laboratory" / "simt" / "include"):
            if (folder / name).is_file():
                yield (folder / name).resolve()


def compiled(part):
    """What a part compiles first, with what the build writes of headers."""
    if part == "instructions":
        return [*build_sources.cpu_kernels(), *(ROOT / "laboratory" / "instructions").glob("*.cpp")]
    sources = [*build_sources.operators("aten"), *build_sources.cuda_bindings(), *build_sources.yardsticks()]
    kernels = [*build_sources.cuda_kernels(), *build_sources.cuda_yardsticks()[1]]
    return [
        *sources,
        *kernels,
        *(ROOT / "laboratory/simt").glob("*.c*"),
        *(ROOT / "laboratory/machine_code").glob("*.cu"),
    ]


@pytest.mark.parametrize("part", PARTS)
def test_all_that_is_compiled_is_an_input(part):
    left, seen = compiled(part), set()
    while left:
        file = left.pop().resolve()
        if file not in seen:
            seen.add(file)
            left += included(file)
    written = {file for file in seen if (ROOT / "build") in file.parents}
    assert len(written) >= 20 and len(seen - written) > 40
    assert seen - written - {ROOT / path for path in PARTS[part].inputs()} == set()


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A few of the inputs, recorded as checked."""
    monkeypatch.delenv("HALFGNN_TEST_ALL", raising=False)
    for path in (
        "csrc/core/types.h",
        "laboratory/simt/run.py",
        "halfgnn/ops/spmm.py",
        "build_sources.py",
        "csrc/cpu/threads.h",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    digests = {name: part.digest(tmp_path) for name, part in PARTS.items()}
    (tmp_path / RECORD).parent.mkdir()
    (tmp_path / RECORD).write_text(json.dumps({"commit": "", "digests": digests}))
    return tmp_path


def must_check(part, root, gpus=()):
    return checked.must_check(part, root, gpus)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_left_alone_until_an_input_changes(part, root):
    every = [path.relative_to(root).as_posix() for path in root.rglob("*.*") if path.is_file()]
    assert len(PARTS[part].inputs(root)) > 2 and not must_check(part, root)
    for path in [path for path in every if path != RECORD]:
        before = (root / path).read_bytes()
        (root / path).write_bytes(before + b"\n")
        assert must_check(part, root) == (path in PARTS[part].inputs(root)), path
        (root / path).write_bytes(before)
    assert not must_check(part, root)


@pytest.mark.parametrize("part", PARTS)
def test_a_part_is_checked_if_a_file_is_new_or_renamed_or_nothing_is_recorded(part, root, monkeypatch):
    (root / "csrc/core/more.h").write_text("")
    assert must_check(part, root)
    (root / "csrc/core/more.h").unlink()
    (root / "csrc/core/types.h").rename(root / "csrc/core/kinds.h")
    assert must_check(part, root)
    (root / "csrc/core/kinds.h").rename(root / "csrc/core/types.h")
    assert not must_check(part, root)
    assert must_check(part, root, [str(root / "build_sources.py")]) == (part == "cuda")  # a GPU
    monkeypatch.setenv("HALFGNN_TEST_ALL", "1")
    assert must_check(part, root)
    monkeypatch.delenv("HALFGNN_TEST_ALL")
    (root / RECORD).unlink()
    assert must_check(part, root)


@pytest.mark.parametrize("part", PARTS)
def test_the_record_is_of_a_commit(part):
    """What it says was checked are the inputs of the commit that it names, as checked.py listed them when the record was committed:
    what has been moved since is checked again."""
    record = json.loads((ROOT / RECORD).read_text())
    commit = record["commit"]

    def git(*arguments):
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)

    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode != 0:
        pytest.skip("the history is not here")
    recorded = git("log", "-1", "--format=%H", "--", RECORD).stdout.decode().strip()
    then = types.ModuleType("then")
    then.__file__ = checked.__file__
    exec(git("show", f"{recorded}:tests/checked.py").stdout, vars(then))
    names = git("ls-tree", "-r", "--name-only", commit).stdout.decode().splitlines()
    paths = [path for path in names if then.PARTS[part].has(path)]
    assert paths and then.digest(paths, lambda path: git("show", f"{commit}:{path}").stdout) == record["digests"][part]
