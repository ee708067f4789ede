"""Candidates made by AMD Quark, with the same search and the same gates.

Quark makes the integers and the scales. Our search decides on float nodes: nodes are ranked by
quantizing each alone with our own quantizer and the same types, since a run of Quark takes a
minute.

Python interpreter with AMD Quark.

Quark needs an older onnx than ours, PyTorch and a C++ compiler, so Quark usually lives in a
separate environment, which a variable names.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import numpy as np

from edgepack.errors import BuildError
from edgepack.packager.graph.model_files import load_model, save_model
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import BuildStep, Progress
from edgepack.packager.quantization.contract import (
    BuiltCandidate,
    CandidateSpec,
    Measured,
    PassCandidateMaker,
    QuantizationMethod,
    Ranked,
)
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.runtime.pinned_toolchain import ask_child
from edgepack.packager.tensors.sequence import Samples
from edgepack.python_child import foreign_python_command

_CHILD = Path(__file__).with_name("child.py")


class _Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the child."""

    version: str


class QuarkCandidateMaker(PassCandidateMaker[Quantize]):
    """Candidate maker for a float model, by Quark.

    Raises:
        BuildError: Quark is nowhere to be found.
    """

    def __post_init__(self) -> None:
        self._python = find_quark()
        self._own = StaticCandidateMaker(
            self.model, self.settings, self.samples, self.work_dir, self.progress
        )
        self._folder = self.work_dir.resolve() / "quark"
        self._config = quark_config(self.settings)
        self.methods = (QuantizationMethod(base=f"quark-{self._config}"),)
        self.names = self._own.names

    def build(self, spec: CandidateSpec) -> BuiltCandidate:
        """Run Quark once."""
        source, output, samples = self._write_inputs()
        request = {
            "model": str(source),
            "output": str(output),
            "samples": str(samples),
            "config": self._config,
            "exclude": sorted(spec.float_nodes),
        }
        self.progress(BuildStep(detail=f"AMD Quark, {self._config}"))
        answer = ask_child(
            foreign_python_command(self._python, str(_CHILD)),
            msgspec.json.encode(request),
            _Answer,
            timeout_s=self.settings.backend_timeout_s,
            failed="AMD Quark gave no result",
            found_in=f"pass quantize, run by {self._python}",
            remedy="backend = 'edgepack', our own quantizer for the same types; where time ran "
            "out, a higher backend_timeout_s",
        )
        return BuiltCandidate(
            model=load_model(output),
            lowered=self._lowered(spec),
            notes=(f"Quantized by AMD Quark {answer.version}, {self._config}.",),
        )

    def rank(
        self, spec: CandidateSpec, samples: Samples, progress: Progress, measured: Measured = None
    ) -> Ranked:
        """Measure the cost of quantizing each node alone, with our own quantizer."""
        return self._own.rank(
            CandidateSpec(method=self._own.methods[0]), samples, progress, measured
        )

    def _write_inputs(self) -> tuple[Path, Path, Path]:
        source, samples = self._folder / "float.onnx", self._folder / "samples"
        if not samples.exists():
            samples.mkdir(parents=True)
            save_model(self.model, source)
            for index in range(self.samples.count):
                feeds = self.samples.read(index)
                np.savez(samples / f"{index:06}.npz", **feeds)  # type: ignore[arg-type]
        return source, self._folder / "quantized.onnx", samples


def quark_config(settings: Quantize) -> str:
    """Return the Quark configuration that makes the types that a profile asks for."""
    if settings.scales == "power_of_two":
        return "XINT8"
    return "A16W8" if settings.activations == "int16" else "A8W8"


VARIABLE = "EDGEPACK_QUARK_PYTHON"
_INSTALL = (
    "python -m venv quark && quark/bin/pip install amd-quark 'onnx<=1.22' onnxruntime torch, "
    f"then {VARIABLE}=quark/bin/python"
)


def find_quark(
    environment: Mapping[str, str] = os.environ,
    is_here: Callable[[str], bool] = lambda name: importlib.util.find_spec(name) is not None,
) -> str:
    """Return the interpreter for Quark: the named interpreter, or this interpreter if Quark is
    installed.

    Args:
        environment: Environment variables.
        is_here: Whether this interpreter can import a package.

    Raises:
        BuildError: The named path is not a program, or no path is named and Quark is not here.
    """
    named = environment.get(VARIABLE, "")
    if named:
        program = shutil.which(named)
        if program is None:
            raise BuildError(
                f"{VARIABLE} names no program: {named}",
                found_in="pass quantize, backend = 'quark'",
                remedy=_INSTALL,
            )
        return program
    if is_here("quark"):
        return sys.executable
    raise BuildError(
        "AMD Quark is not installed here, and no environment that has it is named",
        found_in="pass quantize, backend = 'quark'",
        remedy=_INSTALL,
    )
