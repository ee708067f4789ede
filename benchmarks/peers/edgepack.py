"""edgepack itself: `edgepack build` with a model, a calibration folder and a profile only, and with
what the task's metric ignores.

The settings `…+metric` also name the task's own metric over its development set, which the
benchmark does not print; `calibrated-by-METHOD` try that calibration method alone, by a profile of
their own. The command runs in this process, as the other tools do in theirs.
"""

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.packager.contestants import BY_METHOD, CALIBRATION_METHODS, WITH_METRIC
from benchmarks.peers.arguments import BUNDLE_FOLDER, TOLD_FILE, Given, refuse, run_setting
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.bundle.manifest import COMPONENT, MANIFEST_FILE, Accuracy, decode_manifest
from edgepack.cli import run_command
from edgepack.tasks.details import TASK_KEPT, VALUE_LOW

PROFILES = ("cpu", "cpu-vnni", "openvino-cpu", "qnn-htp", "qnn-htp-a8w8", "vitisai-xint8")

_REPORT = "report.json"

_ONE_METHOD = """
[profile]
name = "{name}"
extends = "{parent}"
summary = "One calibration method; any accuracy will do, so that nothing else is tried"

[[pass]]
name = "quantize"
ranges = ["{method}"]

[gates.accuracy.any]
keep = 0.0
"""


def build(given: Given, *, profile: str | Path, options: Sequence[str] = ()) -> None:
    """Build a bundle with a single variant and extract the model."""
    key = given.output.with_name("benchmark.key")
    bundle = given.output.with_name(BUNDLE_FOLDER)
    if not key.exists():
        write_key_pair(generate_key(), key.with_suffix(""))
    command: list[str | Path] = ["build", given.model, "--profile", profile, "--key", key]
    command += ["--calibration", given.calibration_folder, "--version", "1.0.0", "-o", bundle]
    if given.config is not None:
        command += ["--config", given.config]
    for name, shape in given.shapes.items():
        command += ["--shape", f"{name}={','.join(map(str, shape))}"]
    _run([*map(str, command), *options])
    (variant,) = decode_manifest((bundle / MANIFEST_FILE).read_bytes()).variants
    shutil.copyfile(bundle / COMPONENT / variant.name / variant.model_file, given.output)
    report = json.loads((bundle / _REPORT).read_bytes())
    told = {
        "note": f"precision {variant.facts.precision}",
        "candidates": len(report["variants"][0]["attempts"]),
        "prediction": _predicted(variant.facts.accuracy),
    }
    given.output.with_name(TOLD_FILE).write_text(json.dumps(told))


def _predicted(accuracy: Accuracy) -> dict[str, str | float | None]:
    """Return the bundle's prediction for its variant."""
    return {
        "metric": accuracy.metric,
        "value": accuracy.value,
        "low": accuracy.details.get(VALUE_LOW),
        "task_kept": accuracy.details[TASK_KEPT],
    }


def build_by_metric(given: Given, *, profile: str) -> None:
    """Build the same, chosen by the task's own metric."""
    build(given, profile=profile, options=["--metric", given.metric])


def build_by_method(given: Given, *, method: str) -> None:
    """Build with a single calibration method, with any result."""
    name = f"{BY_METHOD}{method}"
    profile = given.output.with_name(f"{name}.toml")
    parent = CALIBRATION_METHODS[method]
    profile.write_text(_ONE_METHOD.format(name=name, parent=parent, method=method))
    build(given, profile=profile)


def _run(arguments: Sequence[str]) -> None:
    """Run the command `edgepack`; end this process after a failure."""
    sys.argv = ["edgepack", *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            run_command()
    except SystemExit as ended:
        if ended.code == 1:
            refuse(_reason(said.getvalue()))
        if ended.code:
            sys.stderr.write(said.getvalue())
            raise


def _reason(stderr: str) -> str:
    """Return the first line of an edgepack error."""
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    return lines[-1].removeprefix("error: ") if lines else stderr.strip()


if __name__ == "__main__":
    run_setting(
        {
            **{profile: partial(build, profile=profile) for profile in PROFILES},
            **{
                f"{profile}{WITH_METRIC}": partial(build_by_metric, profile=profile)
                for profile in PROFILES
            },
            **{
                f"{BY_METHOD}{method}": partial(build_by_method, method=method)
                for method in CALIBRATION_METHODS
            },
        }
    )
