"""Files of codes of 8 bits: features.npy has them, features.json says what they are, features.scale.npy and
features.zero_point.npy have their scales. NumPy has no float8, so such codes lie in the .npy as uint8."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..ops.codes import CODES
from . import store_files
from .scales import Scales

FORMAT = "halfgnn.quantized_rows"
VERSION = 1
_PARTS = ("scale", "zero_point")
_CHANGES = "changes"  # in the note while the other files are replaced
_START = 512  # characters, in which the format stands
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in CODES}


@dataclass(frozen=True)
class QuantizationError:
    """What was lost: |value - code's value in fp32|, over all finite values.

    Attributes:
        largest, mean: over all values; 0 if there are none.
        largest_of_columns, mean_of_columns: one number for each column, in row-major order.
        saturated: how many values lie beyond the range of a scale that was given. 0 for scales that quantize chose.
    """

    largest: float
    mean: float
    largest_of_columns: tuple[float, ...] = field(repr=False)
    mean_of_columns: tuple[float, ...] = field(repr=False)
    saturated: int = 0


def _beside(path: Path, part: str) -> Path:
    return path.with_name(f"{path.stem}.{part}")


def note(path: Path) -> Path:
    """The file that says what the codes in `path` are."""
    return _beside(path, "json")


def has_note(path: Path) -> bool:
    """Whether the .json beside a file says first that it is of this format. Others may be large."""
    try:
        with note(path).open(errors="replace") as file:
            return FORMAT in file.read(_START)
    except (FileNotFoundError, IsADirectoryError):
        return False


def files_of(path: Path) -> dict[str, Path]:
    """What is written for the codes in `path`, at last and in between."""
    whole = {"codes": path, "note": note(path)} | {part: _beside(path, f"{part}.npy") for part in _PARTS}
    return whole | {f"partial {name}": file.with_suffix(f".partial{file.suffix}") for name, file in whole.items()}


def check_out(path: Path, source: Path | None) -> None:
    """Raises if a file that would be written beside `path` is the source, a folder or of somebody else."""
    told = note(path)
    for file in files_of(path).values():
        if file == source:
            raise ValueError(
                f"out is {str(path)!r}, which would overwrite the file of source, {file}; expected another one"
            )
        if file.is_dir() and file != told:
            raise ValueError(
                f"out is {str(path)!r}, and {file} is a folder; expected a name whose files may be written"
            )
    if told.exists() and not has_note(path):
        raise ValueError(
            f"out is {str(path)!r}, and {told} is no file of halfgnn; expected a name whose .json may be written"
        )


def write(path: Path, dtype: torch.dtype, shape: tuple[int, ...], scales: Scales, error: QuantizationError) -> None:
    """Moves the partial codes of `path` there, and writes what belongs to them.

    Everything is written before the files of before are touched. Then the note says that they change, until all of them have: of
    a process that is killed in between no codes are read with the scales of others, or as features.
    """
    files = files_of(path)
    values = {part: getattr(scales, part) for part in _PARTS}
    content = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": shape,
        **{part: None if values[part] is None else files[part].name for part in _PARTS},
        "error": asdict(error),
    }
    told = json.dumps(content) + "\n"
    for part in _PARTS:
        if values[part] is not None:
            np.save(files[f"partial {part}"], values[part].numpy())
    for text in (json.dumps({"format": FORMAT, "version": VERSION, _CHANGES: True}) + "\n", told):
        files["partial note"].write_text(text)
        files["partial note"].replace(note(path))
        if text == told:
            return
        files["partial codes"].replace(path)
        for part in _PARTS:
            if values[part] is None:
                files[part].unlink(missing_ok=True)
            else:
                files[f"partial {part}"].replace(files[part])


def state(path: Path) -> tuple[int, int, int] | None:
    """Of the note, which changes before and after the other files do."""
    try:
        stat = note(path).stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def remove_partial(path: Path) -> None:
    for name, file in files_of(path).items():
        if name.startswith("partial"):
            file.unlink(missing_ok=True)


def read(path: Path) -> tuple[store_files.Layout, Tensor, Tensor | None, QuantizationError] | None:
    """The layout of codes, their scale and zero point, and the error that they were written with. None without a note of this
    format beside the file."""
    told = note(path)
    if not has_note(path):
        return None
    try:
        content = store_files.parsed(told.read_bytes())
    except ValueError as problem:
        raise ValueError(f"{told} is no JSON: {problem}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{told} has a {type(content).__name__}; expected what {path.name} holds")
    if content.get("version") != VERSION:
        raise ValueError(f"{told} has version {content.get('version')}; expected {VERSION}, which this halfgnn reads")
    if _CHANGES in content:
        raise ValueError(
            f"{path} is being written by quantize, or that was interrupted: expected to be quantized again"
        )
    layout = store_files.npy_layout(path)
    try:
        dtype, shape = _NAMES[content["dtype"]], tuple(content["shape"])
        scale, zero_point = _read_part(path, content["scale"]), _read_part(path, content["zero_point"])
        told_error = content["error"]
        largest, mean = (tuple(told_error[f"{name}_of_columns"]) for name in ("largest", "mean"))
        error = QuantizationError(told_error["largest"], told_error["mean"], largest, mean, told_error["saturated"])
    except (KeyError, TypeError) as problem:
        raise ValueError(f"{told} does not say what {path.name} holds: {problem!r}") from None
    stored = dtype if dtype in (torch.uint8, torch.int8) else torch.uint8
    if (layout.dtype, layout.shape) != (stored, shape) or scale is None:
        raise ValueError(
            f"{path} holds {layout.shape} of {layout.dtype}, and {told.name} tells of {shape} of {stored}: expected files that were"
            " written together"
        )
    return store_files.Layout(dtype, layout.shape, layout.offset), scale, zero_point, error


def _read_part(path: Path, name: Any) -> Tensor | None:
    if name is None:
        return None
    file = path.parent / Path(name).name
    with file.open("rb") as content:
        try:
            return torch.from_numpy(np.lib.format.read_array(content, allow_pickle=False))
        except (ValueError, MemoryError, OverflowError) as problem:
            raise ValueError(f"{file} is no .npy file of numbers: {problem}") from None
