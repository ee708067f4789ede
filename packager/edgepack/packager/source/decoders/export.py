"""Export of a decoder by onnxruntime-genai's builder, in a child process, offline.

    python -m edgepack.packager.source.decoders.export

The request comes as JSON on stdin, the answer goes to stdout.

PyTorch takes gigabytes and may crash: neither is to happen to the build's own process.
"""

import importlib.util
import json
import os
import runpy
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from edgepack.agent.runtime.child import keep_stdout_clean, run_child, take_request
from edgepack.bundle.generation import GENAI_CONFIG
from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import cpu_session, quiet_options
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.source.decoders.wiring import model_file_of
from edgepack.python_child import python_command

COMMAND = python_command("edgepack.packager.source.decoders.export")

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_QUIET = {"ORT_DISABLE_TELEMETRY": "1"}
_NEEDED = ("onnxruntime-genai", "transformers", "torch")
_TIMEOUT_S = 3600.0
_TOKENS = 24
_MOST_DIFFERENCE = 0.02
"""Of the logits' standard deviation. Right exports of small random decoders differ by less than
1e-4, and Gemma's rounded scale, with onnxruntime-genai 0.18, by more than 0.05."""


def export_decoder(
    folder: Path,
    output: Path,
    architecture: str,
    progress: Progress,
    *,
    command: tuple[str, ...] = COMMAND,
) -> str:
    """Export a Hugging Face folder to ONNX by onnxruntime-genai's builder.

    Args:
        folder: The folder.
        output: Target folder.
        architecture: Its architecture, for messages.
        progress: Called when the export begins.
        command: The child.

    Returns:
        A sentence on the export.

    Raises:
        BuildError: A package is missing, or the builder failed.
    """
    try:
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in _NEEDED)
    except metadata.PackageNotFoundError as error:
        raise BuildError(
            f"edgepack has no builder for {architecture}, and the package {error.name} of "
            "onnxruntime-genai's builder is not installed",
            found_in=str(folder),
            remedy=f"pip install {' '.join(_NEEDED)}, or export it elsewhere and give the folder "
            "of the export",
        ) from error
    progress(BuildStep(what=f"exporting {folder.name} by onnxruntime-genai"))
    request = {
        "folder": str(folder.resolve()),
        "output": str(output.resolve()),
        "timeout_s": _TIMEOUT_S,
    }
    ending = run_child(command, json.dumps(request).encode(), timeout_s=_TIMEOUT_S)
    answer = json.loads(ending.answer) if ending.answer is not None else {}
    if "difference" not in answer:
        because = answer.get("problem") or f"the process {ending.because}"
        raise BuildError(
            f"onnxruntime-genai cannot export {architecture}: {because}",
            found_in=str(folder),
            remedy="python -m onnxruntime_genai.models.builder -i FOLDER -o OUT -p fp32 -e cpu "
            "shows all of its output; a folder that another tool exported is taken too",
        )
    if answer["difference"] > _MOST_DIFFERENCE:
        raise BuildError(
            f"the export of {architecture} by onnxruntime-genai is wrong: its logits differ from "
            f"those of transformers by {answer['difference']:.3f} of their standard deviation, and "
            f"{_MOST_DIFFERENCE} is allowed",
            found_in=str(folder),
            remedy="try another version of onnxruntime-genai, or export the folder by Optimum",
        )
    return (
        f"Exported from the folder {folder.name} by onnxruntime-genai's builder: {architecture}, "
        f"{versions}. Its logits differ from transformers' by {answer['difference']:.1g} of their "
        "standard deviation."
    )


def main() -> None:
    """Export the requested folder, and answer with the difference or with the problem."""
    request = json.loads(take_request())
    answer_to = keep_stdout_clean(float(request["timeout_s"]))
    answer: dict[str, Any] = {}
    folder, output = Path(request["folder"]), Path(request["output"])
    try:
        _export(folder, output)
        answer["difference"] = _compare(folder, output)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another project's program
        lines = str(error).strip().splitlines() or [""]
        answer = {"problem": f"{type(error).__name__}: {lines[0]}".removesuffix(": ")}
    answer_to.write(json.dumps(answer).encode())
    answer_to.close()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's threads need seconds to end on their own, and own nothing of ours


def _export(folder: Path, output: Path) -> None:
    os.environ.update(_OFFLINE | _QUIET)
    package = importlib.util.find_spec("onnxruntime_genai")
    if package is None or not package.submodule_search_locations:
        raise ImportError("onnxruntime_genai has no builder")
    builder = Path(package.submodule_search_locations[0]) / "models" / "builder.py"
    # The builder is a program: it imports its parts from its own folder.
    sys.path.insert(0, str(builder.parent))
    paths = ("-i", str(folder), "-o", str(output), "-c", str(output / "cache"))
    sys.argv = [builder.name, *paths, "-p", "fp32", "-e", "cpu"]
    runpy.run_path(str(builder), run_name="__main__")


def _compare(folder: Path, output: Path) -> float:
    """Return the largest difference of the export's logits from those of transformers.

    The difference is divided by the standard deviation of the logits.
    """
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    tokens = np.arange(1, 1 + _TOKENS)[None] * 7 % int(model.config.vocab_size)
    with torch.no_grad():
        expected = model.eval()(torch.tensor(tokens)).logits.numpy()
    session = cpu_session(model_file_of(output), quiet_options(threads=1))
    shapes = {value.name: value.shape for value in session.get_inputs()}
    places = np.arange(_TOKENS)[None]
    feeds = {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "position_ids": places}
    config = json.loads((output / GENAI_CONFIG).read_bytes())["model"]["decoder"]
    empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_size"]), np.float32)
    given = {name: feeds.get(name, empty) for name in shapes}
    (said,) = session.run([config["outputs"]["logits"]], given)
    return float(np.abs(said - expected).max() / expected.std())


if __name__ == "__main__":
    main()
