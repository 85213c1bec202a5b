"""Prints the instructions per edge of the CPU kernels beside the committed ones.

python -m laboratory.instructions [--update]      --update rewrites laboratory/instructions/committed.csv
"""

from __future__ import annotations

import argparse
import sys

from . import counts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="rewrite the committed counts")
    args = parser.parse_args()
    reason = counts.why_not()
    if reason:
        sys.exit(reason)
    driver = counts.build()
    found = counts.run(driver)
    if args.update:
        print(f"wrote {counts.commit(found, driver.compiler)}")
    else:
        print(counts.table(counts.side_by_side(found, counts.committed().counts)))


if __name__ == "__main__":
    main()
