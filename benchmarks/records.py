"""Dataclasses of text, int and float fields in CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, TypeVar

Record = TypeVar("Record")


def _types(kind: type) -> dict[str, str]:
    return {f.name: str(f.type) for f in fields(kind)}


def _parse(kind: str, text: str) -> Any:
    if kind.startswith("float"):
        return float(text) if text else None
    return int(text) if kind == "int" else text


def _format(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def as_kept(record: Record) -> Record:
    """The record as a file has it, whose floats have five digits: what is printed of it is what rows say later."""
    values = asdict(record)  # type: ignore[call-overload]
    return type(record)(**{name: _parse(kind, _format(values[name])) for name, kind in _types(type(record)).items()})


def _check_columns(path: Path, found: Sequence[str] | None, expected: Sequence[str]) -> None:
    if found != list(expected):
        raise ValueError(f"{path} has columns {found}; expected {list(expected)}")


def _present(kind: type, found: Sequence[str] | None) -> list[str]:
    """The fields without those that have a default and that a file from before them lacks."""
    return [f.name for f in fields(kind) if f.name in (found or ()) or f.default is MISSING]


def read(path: Path, kind: type[Record]) -> list[Record]:
    """All records of a file. Raises ValueError if its columns are not the fields of `kind`, or if a line is cut off.
    Fields with a default may be absent."""
    types, found = _types(kind), []
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        _check_columns(path, reader.fieldnames, _present(kind, reader.fieldnames))
        for line in reader:
            present = [text for text in line.values() if text is not None]
            if None in line or len(present) < len(line):
                raise ValueError(f"{path}, line {reader.line_num}: {len(present)} fields, of {len(types)}")
            found.append(kind(**{name: _parse(types[name], text) for name, text in line.items()}))
    return found


def append(path: Path, kind: type[Record], records: Iterable[Record]) -> None:
    """Adds records to a file. Creates the file with its header if it does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    types, is_new = _types(kind), not path.exists()
    if not is_new:
        with open(path, newline="") as file:
            _check_columns(path, csv.DictReader(file).fieldnames, list(types))
    text = io.StringIO()
    writer = csv.DictWriter(text, list(types), lineterminator="\n")
    if is_new:
        writer.writeheader()
    for record in records:
        writer.writerow({name: _format(value) for name, value in asdict(record).items()})  # type: ignore[call-overload]
    with open(path, "a", newline="") as file:  # in one write, so that a run that is cut off leaves no partial line
        file.write(text.getvalue())
