"""The part of README.md that is the benchmark's output."""

from benchmarks.packager.calibration_table import count_calibrators
from benchmarks.packager.contestants import TARGETS
from benchmarks.packager.goals import count_goals
from benchmarks.packager.records import Results
from benchmarks.packager.table import KEPT_SHARE, overview

BEGIN = "<!-- benchmarks: written by `make bench-packager` -->"
END = "<!-- /benchmarks -->"


def put_into(page: str, results: Results) -> str:
    """The page with everything between the two marks replaced.

    Args:
        page: README.md.
        results: What was measured.

    Raises:
        ValueError: The marks are not there, each once and in order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end) or BEGIN in rest or END in after:
        raise ValueError(f"README.md must hold {BEGIN} and, after it, {END}, each once")
    return f"{before}{BEGIN}\n\n{_block(results)}\n\n{END}{after}"


def _block(results: Results) -> str:
    host = results.host
    vnni = "with VNNI" if host.has_vnni else "without VNNI"
    about = (
        "Real models, one and the same calibration data, every tool in an environment of its own: "
        "the task's metric, and in brackets the speed beside the float model on one thread of this "
        f"CPU ({host.cpu}, {vnni}). **Bold** keeps {KEPT_SHARE:.0%} of the float model's metric; "
        "`refused` means that no file was written. Speeds of NPU models on a CPU say "
        "nothing. All numbers: [docs/benchmarks.md](docs/benchmarks.md)."
    )
    tables = [table for target in TARGETS if (table := overview(results, target)).count("\n") > 2]
    counts = [count_goals(results), *([count_calibrators(results)] if results.calibrations else [])]
    goals = "What edgepack promises, and how often it held:\n\n" + "\n".join(counts)
    return "\n\n".join([about, *tables, goals])
