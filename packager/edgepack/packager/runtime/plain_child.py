"""Runs a model in an environment that has ONNX Runtime and no edgepack: started as a file.

A JSON object per line on stdin, and per line on stdout:

    {"model": …, "options": {…}, "provider": …, "provider_options": {…}}       opens it
    {"feeds": …, "outputs": …}         .npz files with members `0/NAME`

Each answer names the release; an answer with `problem` states the failure of ONNX Runtime.
"""

import json
import os
import sys
from typing import Any

LEVEL = "session.graph_optimization_level"
CPU = "CPUExecutionProvider"
MEMORY_PATTERN = "session.enable_mem_pattern"
_LEVELS = {
    "disable_all": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
}


def main() -> None:
    """Answer every line until there is none."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what native code prints is not an answer
    session = None
    for line in sys.stdin:
        answer = {"release": "", "problem": ""}
        try:
            import onnxruntime

            answer["release"] = onnxruntime.__version__
            asked = json.loads(line)
            if "model" in asked:
                session = _open(onnxruntime, asked)
            else:
                _run(session, asked["feeds"], asked["outputs"])
        except Exception as error:  # noqa: BLE001 - ONNX Runtime has a kind for each of its errors
            answer["problem"] = str(error)[:2000]
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _open(onnxruntime: Any, asked: dict[str, Any]) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for key, value in asked["options"].items():
        if key == LEVEL:
            level = getattr(onnxruntime.GraphOptimizationLevel, _LEVELS[value])
            settings.graph_optimization_level = level
        elif key == MEMORY_PATTERN:
            settings.enable_mem_pattern = value == "1"
        else:
            settings.add_session_config_entry(key, value)
    provider = asked["provider"]
    providers = [(provider, asked["provider_options"])]
    if provider != CPU:
        providers.append((CPU, {}))  # for nodes that it leaves
    session = onnxruntime.InferenceSession(asked["model"], settings, providers=providers)
    if provider not in session.get_providers():
        raise ValueError(f"{provider} is not in this environment")
    return session


def _run(session: Any, feeds: str, outputs: str) -> None:
    import numpy as np

    names = [value.name for value in session.get_outputs()]
    with np.load(feeds, allow_pickle=False) as archive:
        given = {value.name: archive["0/" + value.name] for value in session.get_inputs()}
    values = session.run(names, given)
    with open(outputs, "wb") as file:  # noqa: PTH123 - as short as that
        np.savez(file, **{"0/" + name: value for name, value in zip(names, values, strict=True)})


if __name__ == "__main__":
    main()
