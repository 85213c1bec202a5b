"""The machine code of the CUDA kernels obeys machine_code/rules.py: nothing in local memory, 16-byte loads in flight on the
fast paths. The tests read the built library, for every known architecture in it. HALFGNN_TEST_ARCHS names architectures
that it must have; `make test-architectures` sets it. Registers and instructions are compared by `make budgets`, and here
only the comparison is tested.
"""

import fcntl
import functools
import os
import pickle
import re
import subprocess

import pytest

import halfgnn
from halfgnn import _library
from laboratory.machine_code import budgets, disassembly, flow, rules, tables

ARCHS = tables.ARCHS
WANTED = os.environ.get("HALFGNN_TEST_ARCHS", "").split()

# If the library has kernels, the tools to read them must be installed (requirements/test.txt).
_missing = disassembly.missing_tools()
pytestmark = pytest.mark.skipif(
    bool(_missing) and not halfgnn.has_cuda(), reason=f"no CUDA half, and not found: {', '.join(_missing)}"
)
built = pytest.mark.skipif(not halfgnn.has_cuda(), reason="the library was built without its CUDA half")


def test_tools_are_there():
    assert not _missing, f"not found: {', '.join(_missing)}; pip install -r requirements/test.txt"


def test_makefile_builds_for_every_architecture():
    makefile = disassembly.ROOT / "Makefile"
    if not makefile.exists():
        pytest.skip("the sources are not here")

    def listed(variable):
        found = re.search(rf"^{variable} \??= (.*)$", makefile.read_text(), re.MULTILINE).group(1)
        return {"sm_" + arch.replace(".", "") for arch in found.replace("+PTX", "").split()}

    assert ARCHS[0] in listed("TORCH_CUDA_ARCH_LIST"), "make test reads no machine code"
    assert set(ARCHS) <= listed("ARCHITECTURES"), "make test-architectures does not read all"


# ---- the rules -----------------------------------------------------------------------------------

CONTROL = {  # kernel: what is wrong with it
    "control_good": None,
    "control_remainder": "a batch outside of loops with 1 of its 4",
    "control_narrow": "0 16-byte loads in flight",
    "control_serial": "1 16-byte loads in flight",
    "control_local": "local memory",
    "control_spill": "local memory",
    "control_registers": "0 16-byte loads in flight",  # and over budget
}


@pytest.fixture(scope="module")
def controls(tmp_path_factory):
    home = disassembly.toolkit()
    if home is None:
        pytest.skip("no CUDA toolkit was found")
    nvcc, target = os.path.join(home, "bin", "nvcc"), tmp_path_factory.mktemp("control") / "control.o"
    source = disassembly.ROOT / "laboratory" / "machine_code" / "control.cu"
    command = [nvcc, "-gencode=arch=compute_90,code=sm_90", "-std=c++17", "-O3", "-c", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {kernel.name: kernel for kernel in disassembly.read_kernels(target, "sm_90")}


def test_every_control_was_compiled(controls):
    assert set(controls) == set(CONTROL)


@pytest.mark.parametrize("name", CONTROL)
def test_rules_find_what_is_wrong(controls, name):
    found = rules.violations(controls[name], min_loads=3)
    expected = CONTROL[name]
    assert found == [] if expected is None else any(expected in text for text in found), found


def _code(*lines):
    """Instructions and labels, from lines of a listing."""
    code, labels = [], {}
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = len(code)
        else:
            words = line.split()
            target = re.search(r"\((\.\w+)\)", line)
            opcode = words[1] if words[0].startswith("@") else words[0]
            code.append(disassembly.Instruction(line, opcode, target and target.group(1)))
    return code, labels


def test_loads_count_until_the_first_is_needed():
    def count(*lines):
        return disassembly.loads_in_flight(_code(*lines)[0])

    first, second = "LDG.E.128.CONSTANT R4, [R2.64]", "LDG.E.EF.128 R8, desc[UR4][R12.64]"
    assert count(first, second, "FADD R0, R4, R9") == 2
    assert count(first, "FADD R0, R7, R0", second) == 1
    assert count(first, "LDG.E.128 R8, [R6.64]") == 1  # the address comes from the first
    assert count("LDG.E.64 R4, [R2.64]", "LDG.E R8, [R2.64]") == 0


def test_copies_count_in_every_group_that_is_not_waited_for():
    def count(*lines):
        return disassembly.loads_in_flight(_code(*lines)[0])

    copy = "LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]"
    others = ("@!P0 " + copy, "LDGSTS.E [R4], desc[UR4][R2.64]", "@P1 BRA `(.L)", copy)
    assert count("DEPBAR.LE SB0, 0x1", copy, copy, *others) == 4
    assert count(copy, copy, *others, "DEPBAR.LE SB0, 0x0") == 2
    assert count("@P1 BRA `(.L)", copy) == 0


def test_loops_are_those_of_the_flow_of_control():
    def loops(*lines):
        code, labels = _code(*lines)
        return [[code[i].text for i in loop] for loop in flow.innermost_loops(code, labels)]

    body = [
        "BSSY B0, `(.meet)",
        "@P0 BRA `(.skip)",
        "BRA.DIV ~URZ, `(.parted)",  # what it leads to is no part of any loop
        ".back:",
        "IADD3 R0, R0, 0x1, RZ",
        "BSYNC B0",
        ".skip:",
        "IADD3 R1, R1, 0x1, RZ",
        "BSYNC B0",
        ".meet:",
    ]
    inner = [".inner:", "IADD3 R2, R2, 0x1, RZ", "BRA.U UP0, `(.inner)"]
    end = ["@P1 BRA `(.outer)", "EXIT", ".parted:", "BRA `(.back)"]
    of_body = [line for line in body if not line.endswith(":")]
    assert loops("MOV R0, RZ", ".outer:", *body, *end) == [[*of_body, end[0]]]
    assert loops("MOV R0, RZ", ".outer:", *body, *inner, *end) == [inner[1:]]


# ---- the library ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kernels_of(tmp_path_factory):
    # Disassembly takes half a minute. If tests run in several processes, one disassembles and the others wait.
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def read(arch):
        archs = disassembly.architectures(_library._PATH)
        assert set(archs) & {*ARCHS, *rules.OTHER_ARCHS}, f"the library has code for {archs} alone"
        if arch not in archs:
            assert arch not in WANTED, f"HALFGNN_TEST_ARCHS names {arch}, the library was built for {', '.join(archs)}"
            pytest.skip(f"the library was built for {', '.join(archs)}")
        with open(shared / f"{arch}.pickle", "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            if kept := file.read():
                return pickle.loads(kept)
            kernels = disassembly.read_library(_library._PATH, arch, rules.min_loads)
            pickle.dump(kernels, file)
            return kernels

    return functools.cache(read)


@built
@pytest.mark.parametrize("arch", [*ARCHS, *rules.OTHER_ARCHS])
def test_kernels(arch, kernels_of):
    kernels = kernels_of(arch)
    found = {kernel.name: rules.violations(kernel, rules.min_loads(kernel.name)) for kernel in kernels}
    report = [f"{name}: {text}" for name, texts in found.items() for text in texts]
    assert not report, "\n".join([f"{arch}:", *report])
    # Every rule has kernels. Otherwise a renamed kernel would not be checked any more.
    patterns = [*rules.MIN_LOADS, *rules.FEWER_BYTES_IN_FLIGHT, *rules.THREADS, *rules.REMAINDER, *rules.ONE_LOOP]
    unused = [p for p in patterns if not any(re.match(p, kernel.name) for kernel in kernels)]
    assert not unused, f"no kernel is named {unused}"


# ---- what make budgets must find -----------------------------------------------------------------


@pytest.mark.parametrize(
    "name, column", [("control_registers", "registers"), ("control_serial", "loads"), ("control_narrow", "loads")]
)
def test_a_kernel_that_has_changed_is_found(controls, name, column):
    good = budgets.of([controls["control_good"]])
    lines = budgets.differences({"control_good": budgets.of([controls[name]])[name]}, good)
    assert column in {line.column for line in lines}, budgets.report(lines)
    assert budgets.differences(good, good) == []
    assert all(
        f"| control_good | {line.column} | {line.committed} | {line.found} |" in budgets.report(lines) for line in lines
    )


def test_a_kernel_that_has_come_or_gone_is_found(controls):
    good, other = (budgets.of([controls[name]]) for name in ("control_good", "control_serial"))
    found = {(line.kernel, line.committed is None) for line in budgets.differences(other, good)}
    assert found == {("control_serial", True), ("control_good", False)}


def test_columns_of_an_architecture():
    text = "Text | s.\n| k | sm_90: a | b | sm_80: a | b |\n| --- | --- | --- | --- | --- |\n| f | 1 | 2 | 3 | 4 |\n"
    assert tables.columns_of(text, ["sm_80"]) == "Text | s.\n| k | sm_80: a | b |\n| --- | --- | --- |\n| f | 3 | 4 |"
    assert tables.columns_of(text, ["sm_80", "sm_90"]) == text.rstrip()


def test_budgets_of_another_compiler_are_not_compared(controls, monkeypatch, capsys):
    kernels = {"sm_90": [controls["control_good"]]}
    found = budgets.check(kernels)
    if budgets.committed("sm_90")[0] == tables.nvcc_version():
        assert found and "control_good" in found[0]
    monkeypatch.setattr(tables, "nvcc_version", lambda: "1.2.3")
    assert budgets.check(kernels) == []
    assert "not compared" in capsys.readouterr().out
