"""Tools that make a model ready: the commands that build, and the processes that write texts."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from benchmarks.packager.environments import prepare
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.decoding import decode_json

HERE = Path(__file__).parent
_BUILDER = "lib/python3.11/site-packages/onnxruntime_genai/models/builder.py"
_ALGORITHM = "algo_config={}"

Command = list[str]


class Contestant(msgspec.Struct, frozen=True, kw_only=True):
    """A tool with its settings.

    Attributes:
        name: Its name in tables.
        group: Contestants of a group keep the same precision: "float", "4 bits" or "8 bits".
        peer: Its environment.
        build: Returns the command that makes its output from a folder.
        race: Returns the command of its process for a number of threads.
        model: Returns the files whose bytes count, the `.onnx` file first.
    """

    name: str
    group: str
    peer: str
    build: Callable[[Path, Path], Command]
    race: Callable[[Path, Path, int], Command]
    model: Callable[[Path], list[Path]]


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and size of a built model.

    Attributes:
        model_bytes: Graph and weights.
        wall_s, cpu_s: Duration, and processor time of the tool and its children.
        peak_bytes: Most memory of any of its processes.
        note: The reason if the tool failed.
    """

    model_bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_bytes: int = 0
    note: str = ""


def _python(peer: str) -> str:
    return str(prepare(peer).python)


def _own(profile: str) -> Contestant:
    def build(folder: Path, output: Path) -> Command:
        output.mkdir()
        key = output.parent / "bench.key"
        if not key.exists():
            write_key_pair(generate_key(), key.with_suffix(""))
        given = str(HERE / profile) if profile.endswith(".toml") else profile
        return [
            *(str(Path(sys.executable).with_name("edgepack")), "build", str(folder)),
            *("--profile", given, "--calibration", str(folder / "prompts.jsonl")),
            *("--key", str(key), "--allow-degraded", "--output", str(output / "bench-1.0.0")),
        ]

    name = Path(profile).stem

    def race(folder: Path, output: Path, threads: int) -> Command:
        program = [sys.executable, "-m", "benchmarks.generative.race_own"]
        return [*program, str(output / "bench-1.0.0"), name, str(threads)]

    def model(output: Path) -> list[Path]:
        return sorted((output / "bench-1.0.0" / "model" / name).glob("model.*"), reverse=True)

    group = "float" if name == "fp32" else "4 bits"
    return Contestant(
        name=f"edgepack {name}", group=group, peer="edgepack", build=build, race=race, model=model
    )


def _genai(name: str, group: str, precision: str, *options: str) -> Contestant:
    def build(folder: Path, output: Path) -> Command:
        python = Path(_python("generative"))
        return [
            *(str(python), str(python.parents[1] / _BUILDER), "-i", str(folder), "-o", str(output)),
            *("-c", str(output / "cache"), "-p", precision, "-e", "cpu"),
            *(("--extra_options", *options) if options else ()),
        ]

    def race(folder: Path, output: Path, threads: int) -> Command:
        own = output.with_name(f"{output.name}-{threads}")  # its settings name the threads
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(output, own)
        return [_python("generative"), str(HERE / "race_genai.py"), str(own), str(threads)]

    return Contestant(
        name=f"genai {name}",
        group=group,
        peer="generative",
        build=build,
        race=race,
        model=lambda output: sorted(output.glob("model.onnx*")),
    )


def _llama(form: str, group: str) -> Contestant:
    def build(folder: Path, output: Path) -> Command:
        output.mkdir()
        program = [_python("llamacpp"), str(HERE / "write_gguf.py")]
        return [*program, str(folder), str(output / "model.gguf"), form]

    def race(folder: Path, output: Path, threads: int) -> Command:
        context = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
        program = [_python("llamacpp"), str(HERE / "race_llama.py")]
        return [*program, str(output / "model.gguf"), str(threads), str(context)]

    return Contestant(
        name=f"llama.cpp {form}",
        group=group,
        peer="llamacpp",
        build=build,
        race=race,
        model=lambda output: [output / "model.gguf"],
    )


def _optimum() -> Contestant:
    def build(folder: Path, output: Path) -> Command:
        python = Path(_python("optimum"))
        task = ("--task", "text-generation-with-past", "--library", "transformers")
        program = (str(python.with_name("optimum-cli")), "export", "onnx")
        return [*program, "--model", str(folder), *task, str(output)]

    def race(folder: Path, output: Path, threads: int) -> Command:
        return [_python("optimum"), str(HERE / "race_optimum.py"), str(output), str(threads)]

    return Contestant(
        name="Optimum",
        group="float",
        peer="optimum",
        build=build,
        race=race,
        model=lambda output: sorted(output.glob("model.onnx*")),
    )


CONTESTANTS: Mapping[str, Contestant] = {
    one.name: one
    for one in (
        _own("fp32"),
        _genai("fp32", "float", "fp32"),
        _llama("F32", "float"),
        _optimum(),
        _own("cpu-int4"),
        _own("int4-near.toml"),
        _own("int4-direct.toml"),
        _genai("int4", "4 bits", "int4"),
        _genai("int4 k_quant_mixed", "4 bits", "int4", _ALGORITHM.format("k_quant_mixed")),
        _llama("Q4_0", "4 bits"),
        _llama("Q4_K_M", "4 bits"),
        _genai("int8", "8 bits", "int8"),
    )
}


def build(contestant: Contestant, folder: Path, output: Path) -> Built:
    """Build a model, and return its cost and size; a finished build is not repeated."""
    record = output.with_name(f"{output.name}.json")
    if record.exists():
        return decode_json(record.read_bytes(), Built)
    shutil.rmtree(output, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    command = contestant.build(folder, output)
    log = output.with_name(f"{output.name}.log")
    print(f"{folder.name}: building {contestant.name} …", file=sys.stderr, flush=True)
    began = time.perf_counter()
    with log.open("wb") as opened:
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1"}
        process = subprocess.Popen(command, stdout=opened, stderr=opened, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - began
    if process.returncode:
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["no message"]
        found = Built(note=last[0][-300:])
        print(found, file=sys.stderr, flush=True)
        return found
    found = Built(
        model_bytes=sum(file.stat().st_size for file in contestant.model(output)),
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
    )
    record.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    print(found, file=sys.stderr, flush=True)
    return found
