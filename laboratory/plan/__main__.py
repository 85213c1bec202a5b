"""Prints the tables of predicted times that the planners' model makes for docs/tuning.md.

python -m laboratory.plan [--update]

--update rewrites them in the document.
"""

import argparse
import tempfile

from . import tables
from .planners import Planners, compile_planners


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="rewrite the tables of docs/tuning.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planners = Planners(compile_planners(folder))
    if args.update:
        tables.DOCUMENT.write_text(tables.with_tables(tables.DOCUMENT.read_text(), planners))
        print(f"wrote {tables.DOCUMENT}")
    else:
        print(*(table(planners) for table in tables.TABLES.values()), sep="\n\n")


if __name__ == "__main__":
    main()
