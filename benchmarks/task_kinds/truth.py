"""Measures a variant at its task on data that the build did not see, as JSON on stdout.

A process of its own: a model may end ONNX Runtime's process, and OpenVINO is in another
environment.
"""

import argparse
import json
from pathlib import Path

from benchmarks.packager.judge import open_for_score
from benchmarks.task_kinds.kind import TaskModel
from benchmarks.task_kinds.kinds import KINDS
from benchmarks.tasks.float_model import open_float_model
from benchmarks.tasks.task import Array, Feeds, Run
from edgepack.agent.runtime.opening import open_session
from edgepack.bundle.manifest import COMPONENT, MANIFEST_FILE, decode_manifest


def main() -> None:
    """Measure the float model and the only variant of a bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--model", type=Path, required=True, help="the float model")
    parser.add_argument("--bundle", type=Path, required=True)
    given = parser.parse_args()
    print(json.dumps(measure_truth(KINDS[given.kind].make(), given.model, given.bundle)))


def measure_truth(task: TaskModel, model: Path, bundle: Path) -> dict[str, float]:
    """Return the task's metric of the float model and of the only variant of a bundle."""
    return {
        "float_metric": task.measure(open_float_model(model)),
        "variant_metric": task.measure(_open_variant(bundle)),
    }


def _open_variant(bundle: Path) -> Run:
    """Open a variant as a device does, or with an NPU's exact integer products."""
    (variant,) = decode_manifest((bundle / MANIFEST_FILE).read_bytes()).variants
    if variant.device == "npu":
        file = bundle / COMPONENT / variant.name / variant.model_file
        return open_for_score(file, for_npu=True)
    session = open_session(bundle, variant, threads=1)

    def run(feeds: Feeds) -> dict[str, Array]:
        return session.run(feeds)

    return run


if __name__ == "__main__":
    main()
