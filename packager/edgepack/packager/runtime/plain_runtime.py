"""ONNX Runtime by itself, as an application opens a model that was taken out of a bundle.

The model runs on the CPU provider or on a variant's own, with ONNX Runtime's own settings: no agent
sets the settings of the evaluation. In this environment's release, or in that of another
environment, in a process there.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import onnxruntime
from msgspec.structs import replace

from edgepack.agent.runtime.opening import ON_CPU, ProviderSettings
from edgepack.agent.runtime.provider_table import CPU_PROVIDER
from edgepack.agent.runtime.runtime_words import first_line_of
from edgepack.decoding import decode_json
from edgepack.errors import BuildError, DeviceError
from edgepack.packager.runtime import plain_child
from edgepack.packager.runtime.deadline import Deadline
from edgepack.packager.runtime.model_run import Run, open_on_provider
from edgepack.packager.runtime.provider_process import ProviderProcess
from edgepack.packager.tensors.exchange import read_tensors, write_tensors
from edgepack.packager.tensors.sequence import Feeds
from edgepack.python_child import foreign_python_command
from edgepack.tasks.arrays import Outputs

_TIMEOUT_S = 600.0


class PlainRelease(msgspec.Struct, frozen=True, kw_only=True):
    """An environment with ONNX Runtime.

    Attributes:
        release: Its version.
        python: The interpreter; "" for this environment.
        on: The provider with its device and options; another than the CPU's needs `python`.
    """

    release: str
    python: str = ""
    on: ProviderSettings = ON_CPU

    @property
    def words(self) -> str:
        """ONNX Runtime, and the provider where that is another than the CPU's."""
        on = "" if self.on.provider == CPU_PROVIDER else f" on {self.on.provider}"
        return f"ONNX Runtime {self.release} by itself{on}"

    @contextlib.contextmanager
    def open(
        self, model: Path, options: Mapping[str, str], deadline: Deadline | None = None
    ) -> Iterator[Run]:
        """Open a model on the provider.

        Args:
            model: Its file.
            options: Session config entries next to ONNX Runtime's own settings.
            deadline: Deadline of the process; None for no end.

        Raises:
            BuildError: ONNX Runtime rejects the model; the yielded function raises the same.
            OutOfTimeError: The time is used up; the yielded function raises the same.
        """
        deadline = deadline or Deadline()
        if self.python:
            with ProviderProcess(_command(self.python)) as process:
                process.start_anew(self.python)
                asked = {
                    "model": str(model),
                    "options": dict(options),
                    "provider": self.on.provider,
                    "provider_options": dict(self.on.provider_options),
                }
                yield _open_there(process, asked, deadline)
            return
        settings = replace(self.on, session_options=dict(options))
        run_here = open_on_provider(model, settings)

        def run(feeds: Feeds) -> Outputs:
            try:
                return run_here(feeds)
            except DeviceError as error:
                raise BuildError(error.problem, remedy=error.remedy) from error

        yield deadline.run_in_time(run)


class _Answer(msgspec.Struct, frozen=True):
    release: str
    problem: str


def find_releases(
    pythons: tuple[str, ...], deadline: Deadline | None = None
) -> tuple[PlainRelease, ...]:
    """Return this environment's ONNX Runtime, and the releases of others.

    Args:
        pythons: Interpreters of other environments.
        deadline: Deadline of the answers; None for no end.

    Raises:
        BuildError: An interpreter is not a program, or has no ONNX Runtime.
    """
    here = PlainRelease(release=onnxruntime.__version__)
    return (here, *(_find(python, deadline or Deadline()) for python in pythons))


def _find(named: str, deadline: Deadline) -> PlainRelease:
    where, python = f"--plain-runtime {named}", shutil.which(Path(named).expanduser())
    if python is None:
        raise BuildError(
            f"'{named}' is not a program that can be run",
            found_in=where,
            remedy="the path of an environment's interpreter, such as oldest/bin/python",
        )
    with ProviderProcess(_command(python)) as process:
        process.start_anew(python)
        answer = _ask(process, {}, deadline)
    if not answer.release:
        raise BuildError(
            f"there is no ONNX Runtime to run models in: {first_line_of(answer.problem)}",
            found_in=where,
            remedy=f"{named} -m pip install onnxruntime",
        )
    return PlainRelease(release=answer.release, python=python)


def _command(python: str) -> tuple[str, ...]:
    return foreign_python_command(python, plain_child.__file__)


def _open_there(process: ProviderProcess, asked: Mapping[str, object], deadline: Deadline) -> Run:
    _ask_for(process, asked, deadline)

    def run(feeds: Feeds) -> Outputs:
        with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
            given, made = Path(folder) / "feeds.npz", Path(folder) / "outputs.npz"
            write_tensors(given, [dict(feeds)])
            _ask_for(process, {"feeds": str(given), "outputs": str(made)}, deadline)
            return read_tensors(made, 1)[0]

    return run


def _ask_for(process: ProviderProcess, request: Mapping[str, object], deadline: Deadline) -> None:
    answer = _ask(process, request, deadline)
    if answer.problem:
        raise BuildError(f"onnxruntime {answer.release}: {first_line_of(answer.problem)}")


def _ask(process: ProviderProcess, request: Mapping[str, object], deadline: Deadline) -> _Answer:
    timeout_s = deadline.timeout_s(_TIMEOUT_S)
    ending = process.ask(msgspec.json.encode(request), timeout_s=timeout_s)
    if ending.answer is None:
        deadline.check()  # it may have been ended for that
        return _Answer(release="", problem=ending.because)
    return decode_json(ending.answer, _Answer)
