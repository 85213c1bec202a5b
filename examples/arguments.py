"""Numbers within bounds on the command lines of the examples."""

from __future__ import annotations

import argparse


def number(kind, low, high=None, open_low=False):
    """An argparse type: a number of `kind` in [low, high), or (low, high) with open_low."""

    def convert(text: str):
        value = kind(text)
        if not (value > low if open_low else value >= low) or (high is not None and not value < high):
            bound = f"{'>' if open_low else '>='} {low}" + ("" if high is None else f" and < {high}")
            raise argparse.ArgumentTypeError(f"must be {bound}, got {text}")
        return value

    convert.__name__ = kind.__name__  # argparse then says "invalid int value" if the text is not a number
    return convert
