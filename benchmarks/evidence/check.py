"""Check that each constant that decides a verdict has an entry in `constants.toml`.

Constants without evidence are counted. Their number must not rise: lower `MOST_UNPROVEN` with
each constant that gets evidence or is removed.
"""

import sys

from benchmarks.evidence.constants import SECTIONS, find_faults, read_list

MOST_UNPROVEN = 7


def main() -> int:
    """Print problems and the numbers by section; return 1 after a problem."""
    faults = find_faults()
    listed = read_list()
    unproven = len(listed.get("unproven", {}))
    if unproven > MOST_UNPROVEN:
        faults.append(f"{unproven} constants have no evidence; at most {MOST_UNPROVEN} may")
    for fault in faults:
        print(fault, file=sys.stderr)
    counts = ", ".join(f"{len(listed.get(name, {}))} {name}" for name in SECTIONS)
    print(f"constants that decide verdicts: {counts}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
