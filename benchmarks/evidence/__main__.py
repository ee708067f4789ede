"""Measures the effect of each constant without another proof on verdicts: half and twice its value.

    python -m benchmarks.evidence --output docs/benchmarks/evidence

Verdicts on the variants of `benchmarks.evidence.recordings` are compared with the verdicts by the
unchanged constants. The developed kinds are the models used to choose constants, the independent
kinds are other models. A kind that was measured before, by the same sources, is not measured again.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from benchmarks.evidence.known import QUESTIONS, ask
from benchmarks.evidence.measuring import ALL, measure_kind
from benchmarks.evidence.page import Evidence, page
from benchmarks.packager.contestants import OWN
from benchmarks.packager.environments import prepare
from edgepack.decoding import decode_json
from edgepack.durable import write_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--kinds", type=_listed, default=tuple(ALL), help="measure these; others stay as published"
    )
    parser.add_argument("--questions", type=_listed, default=tuple(QUESTIONS), help="likewise")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument(
        "--any-version", action="store_true", help="keep kinds that other sources were measured by"
    )
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    version = "" if given.any_version else prepare(OWN).version
    file = given.output / "evidence.json"
    published = decode_json(file.read_bytes(), Evidence) if file.exists() else Evidence(kinds=())
    measured = {one.kind: one for one in published.kinds}
    answered = dict(published.answers)
    with ProcessPoolExecutor(given.workers, max_tasks_per_child=1) as pool:
        asked = {pool.submit(ask, name): name for name in given.questions}
        jobs = {pool.submit(measure_kind, name, version): name for name in given.kinds}
        for job in as_completed(jobs):
            measured[jobs[job]] = job.result()
            print(jobs[job], measured[jobs[job]].variants, file=sys.stderr, flush=True)
        for question in as_completed(asked):
            answered[asked[question]] = question.result()
    evidence = Evidence(
        kinds=tuple(measured[name] for name in ALL if name in measured),
        answers={name: answered[name] for name in QUESTIONS if name in answered},
    )
    given.output.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(evidence), indent=1)
    write_file(file, content)
    write_file(given.output / "README.md", page(evidence).encode())
    return 0


def _listed(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    sys.exit(main())
