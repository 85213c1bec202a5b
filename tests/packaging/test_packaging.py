"""Packages: the wheel and its metadata, the source distribution, and the errors of build and import.

A wheel is built as by pip, but with a compiler that compiles nothing and "links" by copying the library under test.
"""

import email
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

from halfgnn import _library
from tests import support

ROOT = Path(__file__).resolve().parents[2]
MINOR = ".".join(torch.__version__.split(".")[:2])
IS_STABLE = tuple(map(int, MINOR.split("."))) >= (2, 10)  # what a build of the CPU back end chooses
STAND_IN = "import types; sys.modules['torch'] = types.SimpleNamespace(__version__='{}')"
PYTHON_39 = "import collections; sys.version_info = collections.namedtuple('V', 'major minor')(3, 9)"
COMPILER = """#!/bin/sh
case "$*" in *-o\\ *) ;; *) exec c++ "$@" ;; esac
shared=no
while [ $# -gt 0 ]; do
  case "$1" in -o) out=$2 ;; -shared) shared=yes ;; esac
  shift
done
if [ $shared = yes ]; then cp {folder}/"${{out##*/}}" "$out"; else : > "$out"; echo "$out:" > "$out.d"; fi
"""

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="the sources are not here")


def python(*args, **environment):
    return subprocess.run(
        [sys.executable, *map(str, args)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


# ---- the wheel -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    compiler = folder / "c++"
    compiler.write_text(COMPILER.format(folder=shlex.quote(os.path.dirname(os.path.abspath(_library._PATH)))))
    compiler.chmod(0o755)
    build = ("build", "-b", folder / "build", "egg_info", "-e", folder)
    made = python(
        "setup.py", "-q", *build, "bdist_wheel", "-d", folder, CXX=str(compiler), CC=str(compiler), HALFGNN_CUDA="0"
    )
    assert made.returncode == 0, made.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel):
    folder = wheel.parent / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_one_wheel_serves_every_python(wheel):
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert wheel.name.split("-")[4] != "any.whl"


def test_metadata_of_the_wheel_name_the_torch_it_fits(installed):
    (path,) = installed.glob("*.dist-info/METADATA")
    metadata = email.message_from_string(path.read_text())
    assert [r for r in metadata.get_all("Requires-Dist") if re.match(r"torch\b[=>]", r)] == [
        "torch>=2.10" if IS_STABLE else f"torch=={MINOR}.*"
    ]
    assert metadata["Requires-Python"] == ">=3.10"
    assert (metadata["License-Expression"] or metadata["License"]) == "Apache-2.0"
    assert metadata["Author"] == "halfgnn contributors" and metadata["License-File"] == "LICENSE"


def test_index_page_has_no_links_to_files(installed):
    """Beside the README of an index page there are no files, and its headings have no anchors."""
    (path,) = installed.glob("*.dist-info/METADATA")
    message = email.message_from_bytes(path.read_bytes())
    page = message.get_payload(decode=True).decode()
    assert message["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert links and [link for link in links if not link.startswith("https://")] == []
    assert "eight_bits.md" in page and "## Install" in page


def test_extras_are_what_the_project_is_tested_with(installed):
    (path,) = installed.glob("*.dist-info/METADATA")
    requires = email.message_from_string(path.read_text()).get_all("Requires-Dist")
    named = {re.match(r"[\w-]+", line)[0].replace("_", "-") for line in requires if "extra ==" in line} - {"halfgnn"}
    tested = " ".join((ROOT / "requirements" / f"{name}.txt").read_text() for name in ("build", "demo", "test"))
    assert named <= {name.replace("_", "-") for name in re.findall(r"^[\w-]+", tested, re.MULTILINE)}
    assert {"dgl", "torch-geometric", "matplotlib", "pytest"} <= named


def test_library_of_the_wheel_says_what_it_was_built_for(installed):
    built = json.loads((installed / "halfgnn" / "_C.json").read_text())
    assert built == {
        "torch": torch.__version__,
        "abi": "stable" if IS_STABLE else "aten",
        "cuda": None,
        "cxx11_abi": torch.compiled_with_cxx11_abi(),
        "without_cuda": "HALFGNN_CUDA=0",
    }
    assert (installed / "halfgnn" / "_C.so").stat().st_size == os.path.getsize(_library._PATH)


def test_wheel_is_complete(installed, tmp_path):
    code = "import halfgnn, halfgnn.dataloading, halfgnn.dgl, halfgnn.distributed, halfgnn.nn, halfgnn.pyg; print(halfgnn.__file__)"
    environment = {k: v for k, v in os.environ.items() if k != "HALFGNN_LIBRARY"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == str(installed / "halfgnn" / "__init__.py")


def test_library_that_was_built_here_says_what_for():
    built = _library._built_for(_library._PATH)
    if built is None:
        pytest.skip("setup.py did not build the library under test, or an earlier one did")
    assert built["torch"] == torch.__version__ or built["abi"] == "stable"
    assert built["cuda"] in (None, torch.version.cuda)
    assert f"{ROOT}/csrc".encode() not in Path(_library._PATH).read_bytes(), "paths of this machine"


def test_autograd_functions_that_were_built_here_are_loaded():
    path = Path(_library._FOLDER, "_autograd.so")
    if not path.exists() or _library._built_for(str(path))["torch"] != torch.__version__:
        pytest.skip("an earlier build has none, or one for another torch")
    assert _library.has_autograd()
    assert f"{ROOT}/csrc".encode() not in path.read_bytes(), "paths of this machine"


# ---- a library that does not fit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2.11.0", "2.11.1", "2.11.0+cpu", "2.11.0+cu130"])
@pytest.mark.parametrize("cuda", [None, "13.0", "13.2"])
def test_library_fits_its_minor_version(version, cuda):
    built = {"torch": "2.11.0+cu130", "cuda": None if cuda is None else "13.0", "cxx11_abi": True}
    assert _library._why_unfit(built, version, cuda, True) is None


@pytest.mark.parametrize(
    ("version", "cuda", "abi", "words"),
    [
        ("2.12.0", "13.0", True, ["torch 2.11.0+cu130", "torch 2.12.0"]),
        ("2.1.1", "13.0", True, ["torch 2.11.0+cu130", "torch 2.1.1"]),
        ("3.11.0", "13.0", True, ["torch 2.11.0+cu130", "torch 3.11.0"]),
        ("2.11.0+cu128", "12.8", True, ["CUDA 13.0", "torch 2.11.0+cu128", "CUDA 12.8"]),
        ("2.11.0+cpu", None, True, ["CUDA 13.0", "torch 2.11.0+cpu", "CUDA None"]),
        ("2.11.0", "13.0", False, ["ABI=1", "torch 2.11.0 has 0"]),
    ],
)
def test_library_does_not_fit_another_torch(version, cuda, abi, words):
    built = {"torch": "2.11.0+cu130", "cuda": "13.0", "cxx11_abi": True}
    reason = _library._why_unfit(built, version, cuda, abi)
    assert [word for word in words if word not in reason] == []


@pytest.mark.parametrize("version", ["2.10.0", "2.11.0+cu130", "2.15.0", "3.0.0"])
@pytest.mark.parametrize("built_for", [None, "13.0"])
@pytest.mark.parametrize("cuda", [None, "12.8", "13.2"])
def test_library_by_the_stable_abi_fits_every_later_torch(version, built_for, cuda):
    built = {"torch": "2.11.0+cu130", "abi": "stable", "cuda": built_for, "cxx11_abi": True}
    assert _library._why_unfit(built, version, cuda, True) is None


def test_library_by_the_stable_abi_does_not_fit_an_older_torch(monkeypatch):
    built = {"torch": "2.11.0+cu130", "abi": "stable", "cuda": None, "cxx11_abi": True}
    assert (
        _library._why_unfit(built, "2.9.1", None, True)
        == "was built for torch 2.10 and later, and torch 2.9.1 is installed"
    )
    monkeypatch.setattr(torch, "__version__", "2.9.1")
    assert "pip install 'torch>=2.10'" in _library._cure(built)
    monkeypatch.setattr(torch, "__version__", "2.10.0")
    assert "torch>=" not in _library._cure(built)


@pytest.fixture(params=["checkout", "pip"])
def package(request, tmp_path, monkeypatch):
    """A package folder in a checkout or as installed by pip: (kind of installation, folder), as _library sees it."""
    folder = tmp_path / "halfgnn"
    folder.mkdir()
    if request.param == "checkout":
        (tmp_path / "setup.py").touch()
    monkeypatch.setattr(_library, "_FOLDER", str(folder))
    monkeypatch.setattr(_library, "_PATH", str(folder / "_C.so"))
    monkeypatch.setattr(_library, "_NAMED", None)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if not Path(place, "halfgnn").exists()])
    return request.param, folder


def cure(how, folder):
    if how == "pip":
        return "pip install --no-build-isolation --no-deps --no-cache-dir --force-reinstall ."
    return f"cd {folder.parent} && python setup.py build_ext --inplace"


def test_import_after_another_torch_was_installed(package):
    how, folder = package
    (folder / "_C.so").touch()
    (folder / "_C.json").write_text('{"torch": "2.3.1+cu121", "cuda": null, "cxx11_abi": true}')
    with pytest.raises(ImportError) as raised:
        _library._load()
    for words in ("torch 2.3.1+cu121", f"torch {torch.__version__}", cure(how, folder), "pip install 'torch==2.3.*'"):
        assert words in str(raised.value)


@pytest.mark.parametrize("facts", [{"cuda": "1.0"}, {"cxx11_abi": not torch.compiled_with_cxx11_abi()}])
def test_another_torch_of_this_version_is_no_cure_by_its_version(package, facts):
    how, folder = package
    built = {"torch": torch.__version__, "cuda": None, "cxx11_abi": torch.compiled_with_cxx11_abi(), **facts}
    (folder / "_C.so").touch()
    (folder / "_C.json").write_text(json.dumps(built))
    with pytest.raises(ImportError, match="was built") as raised:
        _library._load()
    assert cure(how, folder) in str(raised.value) and "torch==" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", "null", "[1]", "{}", '{"torch": "2.11.0"}', '{"torch": null, "cuda": null}'])
def test_import_beside_damaged_facts(package, text):
    how, folder = package
    (folder / "_C.so").touch()
    (folder / "_C.json").write_text(text)
    with pytest.raises(ImportError, match=r"_C.json does not say which torch") as raised:
        _library._load()
    assert cure(how, folder) in str(raised.value)


def test_import_without_a_library(package):
    how, folder = package
    with pytest.raises(ImportError, match="not built") as raised:
        _library._load()
    assert cure(how, folder) in str(raised.value)


def test_import_of_sources_that_hide_an_installation(package, tmp_path_factory, monkeypatch):
    """`pip install .`, then Python in the same folder."""
    how, folder = package
    site = tmp_path_factory.mktemp("site")
    (site / "halfgnn").mkdir()
    (site / "halfgnn" / "_C.so").touch()
    monkeypatch.chdir(folder.parent)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path_factory.mktemp("other")), str(site)])
    with pytest.raises(ImportError) as raised:
        _library._load()
    is_hidden = how == "checkout"
    assert (f"installed in {site / 'halfgnn'}" in str(raised.value)) == is_hidden
    assert (f"`cd {folder.parent} && pip install --no-build-isolation -e .`" in str(raised.value)) == is_hidden
    assert ("another folder" in str(raised.value)) == is_hidden


def test_import_of_what_does_not_load(package):
    how, folder = package
    (folder / "_C.so").write_bytes(b"no library")
    with pytest.raises(ImportError, match="does not load") as raised:
        _library._load()
    assert cure(how, folder) in str(raised.value)


def test_named_library_that_does_not_fit(package, monkeypatch):
    _, folder = package
    (folder / "_C.so").touch()
    (folder / "_C.json").write_text('{"torch": "2.3.1", "cuda": null, "cxx11_abi": true}')
    monkeypatch.setattr(_library, "_NAMED", str(folder / "_C.so"))
    with pytest.raises(ImportError, match="HALFGNN_LIBRARY"):
        _library._load()


# ---- the build -------------------------------------------------------------------------------------------------------------------


def run_setup(before, *args):
    """setup.py after the statements `before`."""
    code = f"import runpy, setuptools, sys; {before}; sys.argv[1:] = {list(map(str, args))}; runpy.run_path('setup.py')"
    return python("-c", code)


@pytest.mark.parametrize("command", ["dist_info", "bdist_wheel", "build_ext"])
def test_without_torch_the_build_says_what_to_type(command):
    """pip's build isolation hides the installed torch. pip requests the metadata before it installs or compiles
    anything."""
    result = run_setup("sys.modules['torch'] = None", command)
    assert result.returncode == 1
    assert "pip install setuptools wheel ninja && pip install --no-build-isolation ." in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([".[pyg]"], "'.[pyg]'"),
        (["other[x]", "-e", ".[dgl,pyg]"], "-e '.[dgl,pyg]'"),
        ([f"{ROOT}[test]"], "'.[test]'"),
        (["--editable", "."], "-e ."),
        (["other[x]", "."], "."),
    ],
)
def test_what_to_type_has_the_extras_of_the_command(words, what):
    """pip runs the build, which finds them in pip's command."""
    code = "import runpy, setuptools, sys; sys.modules['torch'] = None; sys.argv[1:] = ['dist_info']; "
    build = [sys.executable, "-c", f"{code}runpy.run_path('setup.py')"]
    result = python("-c", f"import subprocess, sys; sys.exit(subprocess.run({build}).returncode)", "install", *words)
    assert result.returncode == 1
    assert result.stderr.endswith(f"ninja && pip install --no-build-isolation {what}\n")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("HALFGNN_CUDA", "yes", "0 or 1"), ("HALFGNN_SANITIZE", "true", "0 or 1"), ("HALFGNN_TABLE", "avx3", ".*avx2")],
)
def test_misspelt_settings_start_no_build(name, value, expected):
    result = python("setup.py", "-q", "build_ext", **{name: value})
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert re.search(f"^{name} is {value}; expected {expected}", result.stderr, re.MULTILINE)


def test_unknown_settings_start_no_build():
    result = python("setup.py", "-q", "build_ext", HALFGNN_CUDAS="1")
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.endswith("\nHALFGNN_CUDAS is no setting of halfgnn; did you mean HALFGNN_CUDA?\n")


@pytest.mark.parametrize("value", ["2", "yes"])
def test_unknown_choice_of_kernels_is_refused(value):
    with pytest.raises(ImportError, match=f"^HALFGNN_TENSOR_CORES is {value}; expected 0 or 1, or no value"):
        _library.check_settings({"HALFGNN_TENSOR_CORES": value})
    with pytest.raises(ImportError, match=r"^HALFGNN_DOT_PHASES is 0; expected 1 or 2, or no value"):
        _library.check_settings({"HALFGNN_DOT_PHASES": "0"})
    for known in ({}, {"HALFGNN_TENSOR_CORES": "0"}, {"HALFGNN_DOT_PHASES": "2"}):
        assert _library.check_settings(known) is None


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("HALFGNN_TEST_ALL", "0", "1"), ("HALFGNN_TEST_DEVICES", "gpu", "cpu, cuda or both")],
)
def test_unknown_settings_of_tests_are_refused(name, value, expected):
    with pytest.raises(pytest.UsageError, match=f"^{name} is {value}; expected {expected}, or no value"):
        support.check_settings({name: value})
    support.check_settings({"HALFGNN_TEST_ALL": "1", "HALFGNN_TEST_DEVICES": "cpu,cuda"})


def test_source_distribution_without_torch_says_what_to_type(tmp_path):
    """pip unpacks it in a folder that is gone afterwards: no `pip install .`."""
    for name in ("setup.py", "build_sources.py", "cuda_toolkit.py"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: halfgnn\nVersion: 1.2.3\n\nName: of the README\n")
    code = "import runpy, setuptools, sys; sys.modules['torch'] = None; sys.argv[1:] = ['dist_info']"
    result = python("-c", f"{code}; runpy.run_path({str(tmp_path / 'setup.py')!r})")
    assert result.returncode == 1
    assert result.stderr.endswith("ninja && pip install --no-build-isolation halfgnn-1.2.3.tar.gz\n")


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("halfgnn-cu12", {}, "expected halfgnn or one of halfgnn-cu13"),
        ("halfgnn-cu13", {"HALFGNN_CUDA": "0"}, "needs HALFGNN_CUDA=1, HALFGNN_ABI=stable and torch 2.11"),
    ],
)
def test_wrong_distribution(name, settings, words):
    result = python("setup.py", "-q", "build_ext", HALFGNN_DISTRIBUTION=name, **settings)
    assert result.returncode == 1 and words in result.stderr and "Traceback" not in result.stderr


def test_isolated_build_fetches_no_torch():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert not any("torch" in requirement for requirement in requires)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (STAND_IN.format("2.3.1+cu121"), ["torch 2.4 or later", "2.3.1+cu121"]),
        (STAND_IN.format("1.13.0"), ["torch 2.4 or later", "1.13.0"]),
        (PYTHON_39, ["Python 3.10 or later", "3.9"]),
    ],
)
def test_too_old(before, words):
    result = run_setup(before, "build_ext")
    assert result.returncode == 1
    assert [word for word in words if word not in result.stderr] == []
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["/nowhere/c++", "/nowhere/c++ -pipe"])
def test_missing_compiler_is_one_sentence(command, tmp_path):
    build = ("build_ext", "--build-temp", tmp_path, "--build-lib", tmp_path)
    result = python("setup.py", *build, CXX=command, HALFGNN_CUDA="0")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].startswith("halfgnn is compiled by a C++ compiler, and /nowhere/c++")
    assert "Traceback" not in result.stderr and len(result.stderr.splitlines()) < 20  # warnings of setuptools


# ---- the source distribution -----------------------------------------------------------------------------------------------------


def test_source_distribution_holds_every_file_and_no_binary(tmp_path):
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("what belongs to the sources is known from git")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    made = run_setup("sys.modules['torch'] = None", "-q", "egg_info", "-e", tmp_path, "sdist", "-d", tmp_path)
    assert made.returncode == 0, made.stderr
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        (info,) = (name for name in archive.getnames() if name.count("/") == 1 and name.endswith("/PKG-INFO"))
        metadata = email.message_from_bytes(archive.extractfile(info).read())
    assert set(tracked) - names == {".gitignore"}
    assert [name for name in names if name.endswith((".so", ".o", ".pyc", "_C.json"))] == []
    assert not any("torch==" in requirement for requirement in metadata.get_all("Requires-Dist", []))


# ---- import ----------------------------------------------------------------------------------------------------------------------


def test_import_leaves_the_compiler_alone():
    """Importing torch._dynamo, with sympy and triton, takes longer than importing all of halfgnn."""
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import halfgnn, halfgnn.dataloading, halfgnn.dgl, halfgnn.distributed, halfgnn.nn\n"
        "new = set(sys.modules) - before\n"
        "print(*sorted(new & {'torch._dynamo', 'torch._inductor', 'sympy', 'triton', 'dgl', 'torch_geometric'}))"
    )
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []
