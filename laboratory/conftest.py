"""The threads, seeds and fixtures of the ordinary tests."""

from tests.conftest import _seed, device  # noqa: F401
