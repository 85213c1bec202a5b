"""Which test executes which line of the package, and what tests say of a mutant: all in forked processes."""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import IO, Any

import pytest

from .mutate import Mutant

ROOT = Path(__file__).resolve().parents[2]
# Packages that cost seconds to import, and none of which imports halfgnn.
HEAVY = ("torch", "torch._dynamo", "numpy", "scipy.sparse", "dgl", "torch_geometric.nn")
COLD = "cold"
WALL_SECONDS = 300  # after which a test that computes nothing is taken to hang

Lines = dict[str, list[str]]  # file -> "function|text" of every line executed


@dataclass
class Settings:
    root: Path = ROOT
    package: str = "halfgnn"  # the package whose modules are mutated
    tests: tuple[Path, ...] = ()
    per_test: int = 8  # sets of parameters per test function, drawn at random
    budget: float = 60.0  # CPU seconds of tests per mutant, after which it has survived
    jobs: int = 1
    keyword: str = ""  # pytest's -k

    @property
    def cache(self) -> Path:
        return self.root / "build" / "mutants"


@dataclass
class Result:
    status: str  # noticed, timed out, survived, not covered
    test: str = ""  # the test that noticed it
    ran: int = 0  # number of tests that passed before
    of: int = 0  # number of tests that execute its lines


# ---- forked processes --------------------------------------------------------------------------------------------------------


def forked(work: Callable[[Callable[[Any], None]], None], log: Path) -> tuple[int, IO[str]]:
    """Starts work(tell) in a child whose output goes to `log`. Returns (process id, lines of JSON, one per value passed
    to tell)."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid:
        os.close(send)
        return pid, os.fdopen(receive)
    status = 1
    try:
        os.close(receive)
        with log.open("w") as file, os.fdopen(send, "w") as pipe:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            with redirect_stdout(file), redirect_stderr(file):
                work(lambda value: print(json.dumps(value), file=pipe, flush=True))
        status = 0
    finally:
        os._exit(status)


def _tell(work: Callable[[], Any], tell: Callable[[Any], None]) -> None:
    tell(work())


def in_turn(tasks: Iterable[tuple[Any, Callable[[], Any]]], jobs: int, log: Path) -> Iterator[tuple[Any, Any, int]]:
    """Runs tasks in children, `jobs` at a time. Yields (name, result or None, signal that ended it) of each task, in
    order."""
    running: list[tuple[Any, int, IO[str]]] = []

    def first() -> tuple[Any, Any, int]:
        name, pid, pipe = running.pop(0)
        with pipe:
            text = pipe.read()
        status = os.waitpid(pid, 0)[1]
        return name, json.loads(text) if text else None, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    for i, (name, work) in enumerate(tasks):
        if len(running) == jobs:
            yield first()
        running.append((name, *forked(functools.partial(_tell, work), log.with_suffix(f".{i % jobs}.log"))))
    while running:
        yield first()


# ---- lines that a test executes ----------------------------------------------------------------------------------------------


class Tracer:
    """Records every line of the package that is executed. It records the text of a line, because line numbers change
    more often."""

    def __init__(self, settings: Settings) -> None:
        self.prefix = str(settings.root / settings.package) + os.sep
        self.seen: set[tuple[str, str, int]] = set()
        self.texts: dict[str, list[str]] = {}

    def call(self, frame: Any, event: str, arg: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self.prefix):
            return None
        key, seen = (code.co_filename, code.co_name), self.seen

        def line(frame: Any, event: str, arg: Any) -> Any:
            seen.add((*key, frame.f_lineno))
            return line

        return line(frame, event, arg)

    def lines_of(self, work: Callable[[], Any]) -> Lines:
        self.seen.clear()
        before = sys.gettrace()
        threading.settrace(self.call)
        sys.settrace(self.call)
        try:
            work()
        finally:
            sys.settrace(before)
            threading.settrace(None)  # type: ignore[arg-type]
        found: defaultdict[str, set[str]] = defaultdict(set)
        for path, function, number in self.seen:
            name = os.path.relpath(path, os.path.dirname(os.path.dirname(self.prefix)))
            found[name].add(f"{function}|{self.text(path, number)}")
        return {name: sorted(keys) for name, keys in found.items()}

    def text(self, path: str, number: int) -> str:
        if path not in self.texts:
            self.texts[path] = Path(path).read_text().splitlines()
        return self.texts[path][number - 1].strip()


class Coverage:
    """Tests with their CPU seconds and the lines that they execute. They are kept per test file, and measured again if
    it changes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tests: dict[str, dict[str, Any]] = {}  # node id -> seconds, lines
        self.imported: Lines = {}

    def path(self, test_file: Path) -> Path:
        return self.settings.cache / "coverage" / f"{test_file.parent.name}_{test_file.stem}.json"

    def stamp(self, test_file: Path) -> str:
        return hashlib.sha256(test_file.read_bytes()).hexdigest() + f" {self.settings.per_test} {self.settings.keyword}"

    def stale(self) -> list[Path]:
        """Reads the records of test files. Returns the files whose record is missing or old."""
        missing = []
        for test_file in self.settings.tests:
            path = self.path(test_file)
            record = json.loads(path.read_text()) if path.exists() else {}
            if record.get("stamp") == self.stamp(test_file):
                self.tests.update(record["tests"])
            else:
                missing.append(test_file)
        return missing

    def measure(self, items: list[pytest.Item]) -> None:
        """Runs and records the tests of files whose record is missing or old."""
        missing = self.stale()
        tasks = [(file, functools.partial(self._measured, file, items)) for file in missing]
        for file, record, _ in in_turn(tasks, self.settings.jobs, self.settings.cache / "coverage"):
            print(
                f"{file.parent.name}/{file.name}: {len(record['tests']) if record else 'no'} tests measured",
                file=sys.__stderr__,
                flush=True,
            )
            if record:
                self.path(file).write_text(json.dumps(record))
                self.tests.update(record["tests"])

    def _measured(self, file: Path, items: list[pytest.Item]) -> dict[str, Any]:
        tracer, tests = Tracer(self.settings), {}
        for item in _drawn([item for item in items if item.path == file], self.settings.per_test):
            outcome = Outcome()
            start = time.process_time()
            lines = tracer.lines_of(functools.partial(outcome.run, item))
            if outcome.passed:
                tests[item.nodeid] = {"seconds": round(time.process_time() - start, 3), "lines": lines}
        return {"stamp": self.stamp(file), "tests": tests}

    def choose(self, mutant: Mutant, source: str) -> list[str]:
        """The tests that execute a mutant's lines: first the fastest case of each test function, then the second
        fastest, ..."""
        texts = source.splitlines()
        wanted = {texts[number - 1].strip() for number in mutant.lines}
        function = mutant.function.split(".")[-1]
        if function:
            found = self._where(mutant.path, lambda key: key[0] == function and key[1] in wanted)
            found = found or self._where(mutant.path, lambda key: key[0] == function)
        else:  # tests that execute the function whose defaults are mutated, or a line that reads the constant
            names = set(re.findall(r"^\s*(?:async )?(?:def )?(\w+)", "\n".join(wanted), re.M))
            found = self._where(mutant.path, lambda key: key[0] in names)
            found = found or self._where(mutant.path, lambda key: bool(names & set(re.findall(r"\w+", key[1]))))
            found = found or self._where(mutant.path, lambda key: True)
        ranks: defaultdict[str, int] = defaultdict(int)
        order = []
        for test in sorted(found, key=lambda test: self.tests[test]["seconds"]):
            name = test.split("[")[0]
            order.append((ranks[name], self.tests[test]["seconds"], test))
            ranks[name] += 1
        return [test for _, _, test in sorted(order)]

    def _where(self, path: str, fits: Callable[[list[str]], bool]) -> list[str]:
        return [
            test
            for test, record in self.tests.items()
            if any(fits(key.split("|", 1)) for key in record["lines"].get(path, ()))
        ]

    def items_for(self, mutant: Mutant, source: str, items: dict[str, pytest.Item]) -> list[pytest.Item]:
        return [items[test] for test in self.within_budget(self.choose(mutant, source)) if test in items]

    def result(self, mutant: Mutant, source: str, found: Any, signaled: int) -> Result:
        """The Result from the value of first_failure(), or from the signal that ended its process."""
        of = len(self.choose(mutant, source))
        if signaled in (signal.SIGPROF, signal.SIGALRM):
            return Result("timed out", "", 0, of)
        if found is None:
            return Result("noticed", f"its process ended, signal {signaled}", 0, of)
        return Result("noticed" if found[0] else "survived" if of else "not covered", found[0], found[1], of)

    def within_budget(self, tests: list[str]) -> list[str]:
        chosen: list[str] = []
        seconds = 0.0
        for test in tests:
            seconds += self.tests[test]["seconds"]
            if chosen and seconds > self.settings.budget:
                break
            chosen.append(test)
        return chosen


def _drawn(items: list[pytest.Item], per_test: int) -> list[pytest.Item]:
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        groups[item.nodeid.split("[")[0]].append(item)
    chosen = set()
    for name, group in groups.items():
        chosen.update(random.Random(name).sample(group, min(per_test, len(group))))
    return [item for item in items if item in chosen]


# ---- tests on a mutant -------------------------------------------------------------------------------------------------------


class Outcome:
    """Runs single tests by pytest's own protocol."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def run(self, item: pytest.Item, nextitem: pytest.Item | None = None) -> None:
        item.config.pluginmanager.register(self)
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
        finally:
            item.config.pluginmanager.unregister(self)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.reports.append(report)

    @property
    def passed(self) -> bool:
        """Whether the test passed. A test that was skipped or is expected to fail did not pass."""
        return all(report.passed and not hasattr(report, "wasxfail") for report in self.reports)

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)


def first_failure(items: list[pytest.Item], coverage: Coverage) -> tuple[str, int]:
    """(the first test that fails or "", number of tests that passed before). If a test takes far too long, a signal
    ends the process."""
    for i, item in enumerate(items):
        signal.setitimer(signal.ITIMER_PROF, 20 + 20 * coverage.tests[item.nodeid]["seconds"])
        signal.alarm(WALL_SECONDS)
        outcome = Outcome()
        outcome.run(item, items[i + 1] if i + 1 < len(items) else None)
        if outcome.failed:
            return item.nodeid, i
    return "", len(items)


def functions_of(prefix: str) -> list[FunctionType]:
    """Every function made of code under `prefix`."""
    return [x for x in gc.get_objects() if type(x) is FunctionType and x.__code__.co_filename.startswith(prefix)]


def exchange(mutant: Mutant, source: str, root: Path, functions: list[FunctionType]) -> bool:
    """Replaces the code of the functions of the mutated file by the mutant's code. Returns False if that is not
    possible."""
    path, changed = str(root / mutant.path), mutant.source(source)
    # Compare newly compiled code: code that has run is specialised and differs from it.
    codes, originals = _codes(compile(changed, path, "exec")), _codes(compile(source, path, "exec"))
    defaults = {
        (node.name, node.decorator_list[0].lineno if node.decorator_list else node.lineno): node.args
        for node in ast.walk(ast.parse(changed))
        if isinstance(node, ast.FunctionDef)
    }
    done = False
    for function in functions:
        before = function.__code__
        key = before.co_name, before.co_firstlineno
        if before.co_filename != path or key not in codes or key not in originals:
            continue
        if codes[key] != originals[key]:
            if codes[key].co_freevars != before.co_freevars:
                return False
            function.__code__ = codes[key]
            done = True
        elif not mutant.function and key in defaults:
            done |= _exchange_defaults(function, defaults[key])
    return done


def _exchange_defaults(function: FunctionType, args: ast.arguments) -> bool:
    """Replaces the defaults by those of the mutated source. Returns whether they differ."""
    try:
        values = [eval(ast.unparse(node), function.__globals__) for node in args.defaults]
        named = {
            arg.arg: eval(ast.unparse(node), function.__globals__)
            for arg, node in zip(args.kwonlyargs, args.kw_defaults)
            if node
        }
    except NameError:
        return False
    if tuple(values) == (function.__defaults__ or ()) and named == (function.__kwdefaults__ or {}):
        return False
    function.__defaults__, function.__kwdefaults__ = tuple(values), named
    return True


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    found = {(code.co_name, code.co_firstlineno): code}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found.update(_codes(constant))
    return found


class _Importer(importlib.abc.MetaPathFinder):
    """Imports the mutated file in place of the real one."""

    def __init__(self, mutant: Mutant, source: str, root: Path) -> None:
        self.path = str(root / mutant.path)
        self.name = ".".join(Path(mutant.path).with_suffix("").parts).removesuffix(".__init__")
        self.code = compile(mutant.source(source), self.path, "exec")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        code = self.code

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str) -> CodeType:
                return code

        return importlib.util.spec_from_file_location(name, self.path, loader=Loader(name, self.path))


def pytest_main(settings: Settings, files: Iterable[Path], plugin: Any) -> None:
    """Runs pytest in this process. It collects the tests, and the plugin's pytest_runtestloop does the rest."""
    os.chdir(settings.root)
    sys.path.insert(0, str(settings.root))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={settings.root}", "-k", settings.keyword]
    pytest.main([*options, *map(str, files)], plugins=[plugin])


class Hot:
    """Measures coverage, then runs the hot mutants, in a process that has collected every test."""

    def __init__(
        self,
        coverage: Coverage,
        mutants: list[Mutant],
        sources: dict[str, str],
        tell: Callable[[Any], None],
    ) -> None:
        self.coverage, self.mutants, self.sources, self.tell = coverage, mutants, sources, tell

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        coverage, settings = self.coverage, self.coverage.settings
        coverage.measure(session.items)
        items = {item.nodeid: item for item in session.items}
        functions = functions_of(str(settings.root / settings.package) + os.sep)
        gc.collect()
        gc.freeze()  # a child that does not touch an object shares its memory

        def tried(mutant: Mutant) -> Any:
            if not exchange(mutant, self.sources[mutant.path], settings.root, functions):
                return COLD
            return first_failure(coverage.items_for(mutant, self.sources[mutant.path], items), coverage)

        tasks = [(mutant, functools.partial(tried, mutant)) for mutant in self.mutants if self.may_be_hot(mutant)]
        for mutant, found, signaled in in_turn(tasks, settings.jobs, settings.cache / "hot"):
            self.tell((self.mutants.index(mutant), found, signaled))
        return True

    def may_be_hot(self, mutant: Mutant) -> bool:
        """Whether the mutant changes a function's code or defaults that import does not seem to run."""
        texts = self.sources[mutant.path].splitlines()
        function = mutant.function.split(".")[-1]
        keys = {f"{function}|{texts[number - 1].strip()}" for number in mutant.lines}
        return not function or not keys & set(self.coverage.imported.get(mutant.path, ()))


class Cold:
    """Runs the tests of one mutant that the process has imported."""

    def __init__(self, coverage: Coverage, mutant: Mutant, source: str) -> None:
        self.coverage, self.mutant, self.source = coverage, mutant, source
        self.found: Any = ("import or collection", 0)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if not session.testsfailed:
            items = {item.nodeid: item for item in session.items}
            self.found = first_failure(self.coverage.items_for(self.mutant, self.source, items), self.coverage)
        return True


def run_cold(coverage: Coverage, mutant: Mutant, source: str) -> Any:
    sys.meta_path.insert(0, _Importer(mutant, source, coverage.settings.root))
    plugin = Cold(coverage, mutant, source)
    chosen = coverage.within_budget(coverage.choose(mutant, source))
    names = {test.split("::")[0] for test in chosen}
    pytest_main(coverage.settings, [coverage.settings.root / name for name in sorted(names)], plugin)
    return plugin.found


def run_hot(coverage: Coverage, mutants: list[Mutant], sources: dict[str, str], tell: Callable[[Any], None]) -> None:
    root, package = coverage.settings.root, coverage.settings.package
    sys.path.insert(0, str(root))
    folders = sorted(path.parent.relative_to(root) for path in (root / package).rglob("__init__.py"))
    names = [str(folder).replace(os.sep, ".") for folder in folders]
    coverage.imported = Tracer(coverage.settings).lines_of(lambda: [importlib.import_module(name) for name in names])
    pytest_main(coverage.settings, coverage.settings.tests, Hot(coverage, mutants, sources, tell))


def run(
    settings: Settings, mutants: list[Mutant], sources: dict[str, str], note: Callable[[Mutant, Result], None]
) -> None:
    """Runs the tests of each mutant and calls note() with the result: first the hot mutants, then the cold ones."""
    coverage = Coverage(settings)
    (settings.cache / "coverage").mkdir(parents=True, exist_ok=True)
    for name in HEAVY if settings.package == "halfgnn" else ():
        importlib.import_module(name)

    left = list(mutants)
    hot, lines = forked(lambda tell: run_hot(coverage, mutants, sources, tell), settings.cache / "hot.log")
    with lines:
        for line in lines:
            i, found, signaled = json.loads(line)
            if not coverage.tests:
                coverage.stale()
            if found != COLD:
                left.remove(mutants[i])
                note(mutants[i], coverage.result(mutants[i], sources[mutants[i].path], found, signaled))
    if os.waitpid(hot, 0)[1] != 0:
        raise SystemExit(f"the tests do not run: see {settings.cache / 'hot.log'}")
    coverage.stale()
    tasks = [(mutant, functools.partial(run_cold, coverage, mutant, sources[mutant.path])) for mutant in left]
    for mutant, found, signaled in in_turn(tasks, settings.jobs, settings.cache / "cold"):
        note(mutant, coverage.result(mutant, sources[mutant.path], found, signaled))
