"""Makes `.bench/models/minilm.onnx`, once: the package ships PyTorch weights only.

    python -m benchmarks.export_minilm

The exporter needs torch and pins other versions than edgepack's own environment, so the exporter
has a separate environment, `.venv-export`. PyPI's torch for Linux brings CUDA along (gigabytes);
where your index has the CPU build, make `.venv-export` by hand from
`benchmarks/export-requirements.txt`.
"""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.tasks.minilm import MODEL, WEIGHTS
from benchmarks.tasks.places import ROOT

_ENVIRONMENT = ROOT / ".venv-export"
_REQUIREMENTS = Path(__file__).with_name("export-requirements.txt")
_OPSET = 14
"""What optimum-onnx chose when the other tools were measured; newer ones choose higher."""


def main() -> int:
    """Make a missing environment, export, and keep the model alone."""
    python = _ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(_ENVIRONMENT, with_pip=True)
        _run([str(python), "-m", "pip", "install", "-r", str(_REQUIREMENTS)])
    MODEL.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=MODEL.parent) as folder:
        export = [str(python), "-m", "optimum.exporters.onnx", "--model", str(WEIGHTS)]
        task = ["--task", "feature-extraction", "--opset", str(_OPSET), "--device", "cpu"]
        _run([*export, *task, folder])
        (Path(folder) / "model.onnx").replace(MODEL)
    print(MODEL)
    return 0


def _run(words: list[str]) -> None:
    subprocess.run(words, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
