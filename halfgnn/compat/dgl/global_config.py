"""A setting of DGL's that programs may make. It changes nothing here."""

from __future__ import annotations

__all__ = ["is_libxsmm_enabled", "use_libxsmm"]

_settings = {"libxsmm": True}


def use_libxsmm(flag: bool) -> None:
    """Say whether DGL should use libxsmm. halfgnn has kernels of its own, which it always uses."""
    _settings["libxsmm"] = bool(flag)


def is_libxsmm_enabled() -> bool:
    """What :func:`use_libxsmm` was told."""
    return _settings["libxsmm"]
