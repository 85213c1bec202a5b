"""Prints Markdown tables of the kernels of a library: all of them by family, those on fast paths one by one.

python -m tests.machine_code [--update] [LIBRARY]      by default halfgnn/_C.so; --update rewrites the tables of docs/tuning.md
"""

from __future__ import annotations

import argparse
import sys

from . import disassembly, tables


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default=disassembly.ROOT / "halfgnn" / "_C.so")
    parser.add_argument("--update", action="store_true", help="rewrite the tables of docs/tuning.md")
    args = parser.parse_args()
    missing = disassembly.missing_tools()
    if missing:
        sys.exit(f"not found: {', '.join(missing)}")
    kernels = tables.read(args.library)
    if args.update:
        print(f"wrote {tables.update(kernels)}")
    else:
        print(tables.families(kernels), tables.fast_paths(kernels), sep="\n\n")


if __name__ == "__main__":
    main()
