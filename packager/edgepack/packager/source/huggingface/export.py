"""The child that exports a Hugging Face model folder to ONNX, through optimum-onnx, offline.

    python -m edgepack.packager.source.huggingface.export

The request comes as JSON on stdin, the answer goes to stdout

PyTorch takes gigabytes and may crash: neither is to happen to the build's own process.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from edgepack.agent.runtime.child import keep_stdout_clean, take_request

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def main() -> None:
    """Export the requested folder and answer with the task, or with the problem."""
    request = json.loads(take_request())
    answer_to = keep_stdout_clean(float(request["timeout_s"]))
    try:
        answer = {"task": _export(Path(request["folder"]), Path(request["output"]), request)}
    except (AttributeError, ImportError, KeyError, OSError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        answer = {"problem": lines[0]}
    answer_to.write(json.dumps(answer).encode())
    answer_to.close()
    sys.stdout.flush()
    os._exit(0)  # PyTorch's threads need seconds to end on their own, and own nothing of ours


def _export(folder: Path, output: Path, request: dict[str, Any]) -> str:
    """Export a folder.

    The task follows from the class that the configuration names. The folder is read as a
    `transformers` model even if the folder is also a sentence-transformers model, so that the
    result does not depend on whether that package is installed.
    """
    os.environ.update(_OFFLINE)
    # These read the environment above when they are imported.
    import transformers
    from optimum.exporters.onnx import main_export
    from optimum.exporters.tasks import TasksManager

    architecture = str(request["architecture"])
    task = str(TasksManager.infer_task_from_model(getattr(transformers, architecture)))
    main_export(
        str(folder),
        str(output),
        task=task,
        opset=int(request["opset"]),
        device="cpu",
        dtype="fp32",
        library_name="transformers",
        local_files_only=True,
        trust_remote_code=False,
    )
    return task


if __name__ == "__main__":
    main()
