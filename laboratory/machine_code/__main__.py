"""Prints Markdown tables of the kernels of a library: all of them by family, those on fast paths one by one.

python -m laboratory.machine_code [--check | --update] [LIBRARY]      by default halfgnn/_C.so

--check compares with the committed budgets and with the tables of docs/machine_code.md, and ends with status 1 if they differ.
--update rewrites both. It takes a library of all architectures that they are of: build/architectures/halfgnn/_C.so, which
`make test-architectures` builds.
"""

from __future__ import annotations

import argparse
import sys

from . import budgets, disassembly, tables


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", nargs="?", default=disassembly.ROOT / "halfgnn" / "_C.so")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--check", action="store_true", help="compare with the budgets and the tables of docs/machine_code.md"
    )
    choice.add_argument(
        "--update", action="store_true", help="rewrite the budgets and the tables of docs/machine_code.md"
    )
    args = parser.parse_args()
    missing = disassembly.missing_tools()
    if missing:
        sys.exit(f"not found: {', '.join(missing)}")
    kernels = tables.read(args.library)
    if args.check:
        if found := budgets.check(kernels):
            sys.exit("\n\n".join([*found, "If this is meant: python -m laboratory.machine_code --update"]))
    elif args.update:
        written = [tables.update(kernels), *(budgets.commit(arch, budgets.of(kernels[arch])) for arch in kernels)]
        print(f"wrote {', '.join(map(str, written))}")
    else:
        print(tables.families(kernels), tables.fast_paths(kernels), sep="\n\n")


if __name__ == "__main__":
    main()
