"""Language models, made ready and run by several tools: `python -m benchmarks.generative`."""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from benchmarks.generative.contestants import CONTESTANTS, HERE, Built, Contestant, build
from benchmarks.generative.limits import Rounded
from benchmarks.generative.pace import Pace, measure_pace
from benchmarks.generative.page import Measured, ModelNumbers, write_page
from benchmarks.generative.parts import PartTime, measure_parts
from benchmarks.generative.quality import WINDOWS, Quality, measure_quality, restore_llama
from benchmarks.packager.environments import EnvironmentFailedError, prepare
from benchmarks.tasks.places import ROOT
from edgepack.decoding import decode_json

WORK = ROOT / ".bench" / "generative"
TRAINED, DRAWN = "trained", "drawn"
FLOAT = "edgepack fp32"
PROMPT, TOKENS = 128, 64
UNSEARCHED = ("edgepack cpu-int4", "edgepack int4-near")
"""Not built of the drawn model: a search has nothing to find in weights that mean nothing."""

_T = TypeVar("_T")


def make_model(kind: str) -> Path:
    """Return the folder of a model; train or draw a missing model."""
    folder = WORK / kind
    if not (folder / "model.safetensors").exists():
        print(f"making the {kind} model …", file=sys.stderr, flush=True)
        program = [prepare("generative").python, HERE / "train.py", folder, kind]
        subprocess.run([*map(str, program), str(WORK / TRAINED)], check=True)
    return folder


def measure_answers() -> list[Rounded]:
    """Return roundings of the models with right answers; trained once."""
    file = WORK / "answers.json"
    if not file.exists():
        program = [prepare("generative").python, HERE / "answers.py", file]
        subprocess.run(list(map(str, program)), check=True)
    return decode_json(file.read_bytes(), list[Rounded])


def measure_model(kind: str, rounds: int) -> ModelNumbers:
    """Build a model with every tool, and measure what came of it."""
    folder = make_model(kind)
    work = WORK / f"{kind}-built"
    work.mkdir(exist_ok=True)
    outputs = {name: work / name.replace(" ", "-") for name in CONTESTANTS}
    built: dict[str, Built] = {}
    for name, contestant in CONTESTANTS.items():
        if kind == DRAWN and name in UNSEARCHED:
            continue
        try:
            built[name] = build(contestant, folder, outputs[name])
        except EnvironmentFailedError as error:
            built[name] = Built(note=f"not installed: {error}")
    usable = {name: CONTESTANTS[name] for name, one in built.items() if not one.note}
    windows = np.load(folder / "held_out.npy")
    quality = _qualities(usable, folder, outputs, windows[:WINDOWS]) if kind == TRAINED else {}
    prompt = windows[0, :PROMPT].tolist()
    paces: dict[str, dict[str, Pace]] = {}
    for threads in (1, 2):
        record = work / f"pace-{threads}.json"
        if not record.exists():
            commands = {
                name: one.race(folder, outputs[name], threads) for name, one in usable.items()
            }
            found = measure_pace(commands, work, prompt, TOKENS, rounds)
            record.write_bytes(msgspec.json.encode(found))
        paces[str(threads)] = decode_json(record.read_bytes(), dict[str, Pace])
    return ModelNumbers(
        kind=kind,
        float_bytes=(folder / "model.safetensors").stat().st_size,
        built=built,
        quality=quality,
        paces=paces,
    )


def _qualities(
    usable: Mapping[str, Contestant], folder: Path, outputs: Mapping[str, Path], windows: np.ndarray
) -> dict[str, Quality]:
    float_model = usable[FLOAT].model(outputs[FLOAT])[0]
    found = {}
    for name, contestant in usable.items():
        record = outputs[name].with_name(f"{outputs[name].name}-quality.json")
        if not record.exists():
            if contestant.peer == "llamacpp":
                model = restore_llama(contestant, folder, outputs[name], float_model)
            else:
                model = contestant.model(outputs[name])[0]
            measured = measure_quality(model, float_model, windows)
            print(name, measured, file=sys.stderr, flush=True)
            record.write_bytes(msgspec.json.encode(measured))
        found[name] = decode_json(record.read_bytes(), Quality)
    return found


def _parts() -> list[PartTime]:
    record = WORK / "parts.json"
    if not record.exists():
        bundles = {
            kind: WORK / f"{kind}-built" / name.replace(" ", "-") / "bench-1.0.0"
            for kind, name in ((TRAINED, FLOAT), (DRAWN, "edgepack int4-direct"))
        }
        there = {kind: bundle for kind, bundle in bundles.items() if bundle.exists()}
        record.write_bytes(msgspec.json.encode(measure_parts(there)))
    return decode_json(record.read_bytes(), list[PartTime])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.generative", description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for the page and the JSON")
    parser.add_argument("--rounds", type=int, default=7, help="texts of each tool")
    given = parser.parse_args(arguments)
    WORK.mkdir(parents=True, exist_ok=True)
    measured = Measured(
        models=[measure_model(kind, given.rounds) for kind in (TRAINED, DRAWN)],
        answers=measure_answers(),
        parts=_parts(),
        versions="; ".join(prepare(peer).version for peer in ("generative", "llamacpp", "optimum")),
    )
    print(write_page(measured, given.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
