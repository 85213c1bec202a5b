"""Files of codes of 8 bits: features.npy has them, features.json says what they are, features.scale.npy and
features.zero_point.npy have their scales. NumPy has no float8, so such codes lie in the .npy as uint8."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import store_files
from .scales import CODES

FORMAT = "halfgnn.quantized_rows"
VERSION = 1
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
    largest_of_columns: tuple[float, ...]
    mean_of_columns: tuple[float, ...]
    saturated: int = 0


def _beside(path: Path, part: str) -> Path:
    return path.with_name(f"{path.stem}.{part}")


def note(path: Path) -> Path:
    """The file that says what the codes in `path` are."""
    return _beside(path, "json")


def _is_note(told: Path) -> bool:
    """Whether the file says first that it is of this format. Others may be large."""
    try:
        with told.open(errors="replace") as file:
            return FORMAT in file.read(_START)
    except (FileNotFoundError, IsADirectoryError):
        return False


def check_note(path: Path) -> None:
    """Raises if the file that would be written beside `path` is of somebody else."""
    told = note(path)
    if told.exists() and not _is_note(told):
        raise ValueError(
            f"out is {str(path)!r}, and {told} is no file of halfgnn; expected a name whose .json may be written"
        )


def write(
    path: Path,
    codes: Path,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    scale: Tensor,
    zero_point: Tensor | None,
    error: QuantizationError,
) -> None:
    """Moves the .npy file `codes` to `path`, and writes what belongs to it. A process that is killed leaves no note of another
    file's codes."""
    note(path).unlink(missing_ok=True)
    parts: dict[str, str | None] = {"scale": None, "zero_point": None}
    for name, values in (("scale", scale), ("zero_point", zero_point)):
        file = _beside(path, f"{name}.npy")
        if values is None:
            file.unlink(missing_ok=True)
        else:
            np.save(file, values.numpy())
            parts[name] = file.name
    codes.replace(path)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": shape,
        **parts,
    }
    partial = _beside(path, "partial.json")
    partial.write_text(json.dumps(content | {"error": asdict(error)}) + "\n")
    partial.replace(note(path))


def read(path: Path) -> tuple[store_files.Layout, Tensor, Tensor | None, QuantizationError] | None:
    """The layout of codes, their scale and zero point, and the error that they were written with. None without a note of this
    format beside the file."""
    told = note(path)
    if not _is_note(told):
        return None
    try:
        content = json.loads(told.read_text())
    except json.JSONDecodeError as problem:
        raise ValueError(f"{told} is no JSON: {problem}") from None
    if content.get("version") != VERSION:
        raise ValueError(f"{told} has version {content.get('version')}; expected {VERSION}, which this halfgnn reads")
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
    file = path.with_name(Path(name).name)
    try:
        return torch.from_numpy(np.load(file))
    except ValueError as problem:
        raise ValueError(f"{file} is no .npy file of numbers: {problem}") from None
