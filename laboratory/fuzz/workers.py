"""Processes that run cases and may die. Each is forked, writes its standard error to a file, and runs one case at a
time."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

_FORK = multiprocessing.get_context("fork")


@dataclass
class Result:
    """The result of one case. error: None if it passed, otherwise the end of the message of Python or of a
    sanitizer."""

    case: int
    error: str | None
    seconds: float
    has_died: bool = False


class _Worker:
    def __init__(self, run: Callable[[int], None]):
        self.case: int | None = None
        self.begin = 0.0
        self.stderr = tempfile.TemporaryFile("w+b")  # noqa: SIM115  (closed by last_words)
        self.pipe, theirs = _FORK.Pipe()
        self.process = _FORK.Process(target=_serve, args=(run, theirs, self.stderr.fileno()), daemon=True)
        self.process.start()
        theirs.close()

    def give(self, case: int) -> None:
        self.case, self.begin = case, time.monotonic()
        self.pipe.send(case)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def last_words(self, count: int = 6000) -> str:
        self.stderr.seek(0)
        text = self.stderr.read().decode(errors="replace")
        self.stderr.close()
        at = max(text.find("ERROR: AddressSanitizer"), text.find("runtime error:"), 0)
        return text[max(0, at - 200) :][:count]


def _serve(run: Callable[[int], None], pipe: Any, stderr: int) -> None:
    os.dup2(stderr, 2)
    while True:
        case = pipe.recv()
        os.lseek(2, 0, os.SEEK_SET)
        os.ftruncate(2, 0)
        try:
            run(case)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())


def run_all(run: Callable[[int], None], cases: Iterable[int], jobs: int, timeout: float) -> Iterator[Result]:
    """Yields results in the order in which cases end. A case that ends its process or takes longer than timeout is an
    error."""
    cases = iter(cases)
    workers: list[_Worker] = []
    try:
        for _ in range(jobs):
            _replace(workers, None, run, cases)
        while workers:
            ready = wait([w.pipe for w in workers], timeout=1)
            for worker in list(workers):
                seconds = time.monotonic() - worker.begin
                if worker.pipe in ready:
                    try:
                        yield Result(worker.case, worker.pipe.recv(), seconds)
                    except EOFError:
                        worker.end()
                        what = f"the process ended with status {worker.process.exitcode}"
                        yield Result(worker.case, f"{what}\n{worker.last_words()}", seconds, True)
                        _replace(workers, worker, run, cases)
                        continue
                    _next(workers, worker, cases)
                elif seconds > timeout:
                    worker.end()
                    yield Result(worker.case, f"not done after {timeout:.0f} s\n{worker.last_words()}", seconds, True)
                    _replace(workers, worker, run, cases)
    finally:
        for worker in workers:
            worker.end()


def _next(workers: list[_Worker], worker: _Worker, cases: Iterator[int]) -> None:
    case = next(cases, None)
    if case is None:
        worker.end()
        workers.remove(worker)
    else:
        worker.give(case)


def _replace(workers: list[_Worker], dead: _Worker | None, run: Callable[[int], None], cases: Iterator[int]) -> None:
    if dead is not None:
        workers.remove(dead)
    workers.append(_Worker(run))
    _next(workers, workers[-1], cases)
