"""Check that each constant that decides a verdict has an entry in `constants.toml`.

Each constant has evidence: `[unproven]` is for work that is not finished, and fails the check.
"""

import sys

from benchmarks.evidence.constants import SECTIONS, find_faults, read_list


def main() -> int:
    """Print problems and the numbers by section; return 1 after a problem."""
    faults = find_faults()
    listed = read_list()
    faults += [f"{key} has no evidence" for key in listed.get("unproven", {})]
    for fault in faults:
        print(fault, file=sys.stderr)
    counts = ", ".join(f"{len(listed.get(name, {}))} {name}" for name in SECTIONS)
    print(f"constants that decide verdicts: {counts}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
