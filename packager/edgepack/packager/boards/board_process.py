"""Requests of a build to the process on a board: files are sent, answers checked, losses retried.

1. A request names files of this host: the files are sent, and the board's paths take their place.
2. The agent's probe, trials and races run on the board (`trial`), as in a process of this host.
3. Answers are hostile bytes: decoded into the answer's type, and rejected unless the values can be.
4. After a lost connection the build connects again for `RETRY_S`, and repeats the request.

Files are sent once, by content, and the oldest are removed (`BoardFiles`).
"""

import hashlib
import io
import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import onnx
from msgspec.structs import replace

from edgepack.agent.runtime.child import Ending
from edgepack.agent.runtime.probe import ProbeRequest
from edgepack.bundle.manifest import MANIFEST_FILE, Placement, is_golden
from edgepack.bundle.plain_arrays import read_arrays
from edgepack.decoding import decode_json
from edgepack.packager.boards.link import Link
from edgepack.packager.boards.ssh_stream import LinkLostError
from edgepack.packager.graph.stored_tensors import external_files
from edgepack.packager.runtime.board import BoardError, BoardLostError
from edgepack.packager.runtime.provider_process import MODULE, Waiting, in_silence
from edgepack.packager.runtime.race_child import RaceAnswer, RaceRequest
from edgepack.packager.runtime.trial import FEEDS, OUTPUTS, Asked, TrialAnswer, TrialRequest
from edgepack.packager.tensors.exchange import Tensors, write_tensors
from edgepack.wire.reports import DeviceFacts, ProbeResult

RETRY_S = 120.0
"""A board that restarts is back within this time."""

MOST_LOSSES = 3
"""A request that ends the connection this often may end the board."""

_FIRST_PAUSE_S, _MOST_PAUSE_S = 0.5, 5.0
_FACTS = "edgepack.agent.runtime.facts"
_FACTS_TIMEOUT_S = 120.0
_MOST_OUTPUT_BYTES = 1 << 30

_T = TypeVar("_T")


_MOST_FOLDERS = 6
"""The float model, its best candidates and the bundle: a race changes one of two."""


class BoardProcess:
    """The process on a board; see `TrialProcess`.

    Args:
        link: The connection.

    Attributes:
        subject: Purpose of the process; "" without a process.
        losses: How often the connection was lost so far.
    """

    def __init__(self, link: Link) -> None:
        self.subject = ""
        self.losses = 0
        self._link = link
        self._files = BoardFiles(link)
        self._is_started = False
        self._jobs = itertools.count()

    @property
    def name(self) -> str:
        """Return the name of the board."""
        return self._link.address.name

    def read_facts(self) -> DeviceFacts:
        """Connect, and return the facts of the board.

        Raises:
            BoardError: The board cannot be reached, or cannot prove anything.
        """
        try:
            self._link.open()
            self._link.start(_FACTS)
            answer, because = self._link.ask(b"", timeout_s=_FACTS_TIMEOUT_S, waiting=in_silence)
        except LinkLostError as error:
            raise BoardError(
                f"board {self.name} cannot be reached: {error}",
                found_in=f"ssh://{self.name}",
                remedy=f"ssh {' '.join(self._link.address.ssh_words)} true",
            ) from error
        if answer is None:
            raise self._error(f"does not tell its facts: {because}")
        facts = self._decode(answer, DeviceFacts)
        if not facts.runtime:
            because = facts.providers[0].because if facts.providers else "onnxruntime is missing"
            raise self._error(f"cannot run a model: {because}")
        return facts

    def close(self) -> None:
        """End the process and the connection; nothing stays on the board."""
        self._link.close()
        self.subject, self._is_started = "", False

    def start_anew(self, subject: str, first: bytes = b"", command: object = None) -> None:
        """Let the next request start a fresh process; `first` and `command` are not for boards."""
        self.subject, self._is_started = subject, False

    def ask(self, request: bytes, *, timeout_s: float, waiting: Waiting = in_silence) -> Ending:
        """Send a request and wait for the answer; see `ProviderProcess`.

        Raises:
            BoardError: The board cannot do its part, or sent what cannot be.
            BoardLostError: The connection was lost for too long, or too often.
        """
        asked = decode_json(request, Asked)
        until = time.monotonic() + timeout_s
        for losses in itertools.count(1):
            try:
                if not self._link.is_open:
                    self._connect()
                return self._ask(asked, until, waiting)
            except LinkLostError as error:
                lost_s = time.monotonic()
                self.losses += 1
                self._reconnect(error, losses, waiting)
                until += time.monotonic() - lost_s
            except BaseException:  # half an answer may be under way
                self._link.drop()
                self.subject, self._is_started = "", False
                raise
        raise AssertionError("itertools.count does not end")

    def _connect(self) -> None:
        self._files.forget()
        self._is_started = False
        self._link.open()

    def _reconnect(self, error: LinkLostError, losses: int, waiting: Waiting) -> None:
        self._link.drop()
        began_s, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while losses <= MOST_LOSSES:
            try:
                return self._connect()
            except LinkLostError as again:
                error = again
            waited_s = time.monotonic() - began_s
            if waited_s + pause_s > RETRY_S:
                break
            waiting(waited_s)
            time.sleep(pause_s)
            pause_s = min(2.0 * pause_s, _MOST_PAUSE_S)
        tried = (
            f"for {time.monotonic() - began_s:.0f} s"
            if losses <= MOST_LOSSES
            else f"{MOST_LOSSES} times, and the same request ended the connection each time"
        )
        raise BoardLostError(
            f"board {self.name} was lost, and tried again {tried}: {error}",
            found_in=f"ssh://{self.name}",
            remedy="look whether the board runs and has memory enough for the model, then build "
            "again: measurements of the search are kept",
        ) from error

    def _ask(self, asked: Asked, until: float, waiting: Waiting) -> Ending:
        job = f"jobs/{next(self._jobs)}"
        sent = self._send(asked, job)
        if not self._is_started:
            self._link.start(MODULE)
            self._is_started = True
        answer, because = self._link.ask(
            msgspec.json.encode(sent),
            timeout_s=max(0.0, until - time.monotonic()),
            waiting=waiting,
        )
        if answer is None:
            self.subject, self._is_started = "", False
            return Ending(answer=None, because=because)
        checked = self._check(asked, answer, job)
        self._link.remove(job)
        return Ending(answer=msgspec.json.encode(checked), because="")

    def _send(self, asked: Asked, job: str) -> Asked:
        """Send the files of a request, and return the request with the board's paths."""
        folder = f"{self._link.folder}/{job}"
        if asked.trial is not None:
            model = self._files.send_model(Path(asked.trial.model))
            self._link.put(f"{job}/{FEEDS}", Path(asked.trial.exchange) / FEEDS)
            return Asked(trial=replace(asked.trial, model=model, exchange=folder))
        if asked.race is not None:
            models = tuple(self._files.send_model(Path(path)) for path in asked.race.models)
            self._link.put(f"{job}/{FEEDS}", Path(asked.race.feeds))
            return Asked(race=replace(asked.race, models=models, feeds=f"{folder}/{FEEDS}"))
        if asked.probe is not None:
            bundle = self._files.send_folder(_files_of_variant(asked.probe))
            return Asked(probe=replace(asked.probe, bundle_folder=bundle))
        raise ValueError("nothing is asked that has an answer")

    def _check(self, asked: Asked, answer: bytes, job: str) -> msgspec.Struct:
        """Return the typed answer, with its outputs written where this host expects them."""
        if asked.trial is not None:
            trial = self._decode(answer, TrialAnswer)
            self._check_placement(trial.placement, asked.trial)
            if trial.placement is not None:
                self._fetch_outputs(trial, asked.trial, job)
            return trial
        if asked.race is not None:
            race = self._decode(answer, RaceAnswer)
            if not (race.problem or _is_race(race, asked.race)):
                raise self._error("sent times that cannot be")
            return race
        return self._decode(answer, ProbeResult)

    def _check_placement(self, placement: Placement | None, request: TrialRequest) -> None:
        if placement is not None and not (
            placement.provider == request.settings.provider
            and 0 <= placement.taken <= placement.total
        ):
            raise self._error("sent a placement that cannot be")

    def _fetch_outputs(self, answer: TrialAnswer, request: TrialRequest, job: str) -> None:
        content = self._link.get(f"{job}/{OUTPUTS}", _MOST_OUTPUT_BYTES)
        count = answer.ran
        try:
            arrays = read_arrays(io.BytesIO(content), len(content))
            outputs: list[Tensors] = [{} for _ in range(min(count, request.sample_count))]
            for member, value in arrays.items():
                number, _, name = member.partition("/")
                outputs[int(number) if number.isdecimal() else count][name] = value
        except (ValueError, IndexError) as error:
            raise self._error(f"sent outputs that cannot be read: {error}") from error
        names = {frozenset(each) for each in outputs}
        if not 0 < count <= request.sample_count or len(names) != 1:
            raise self._error("sent outputs of other samples than were asked for")
        write_tensors(Path(request.exchange) / OUTPUTS, outputs)

    def _decode(self, answer: bytes, kind: type[_T]) -> _T:
        try:
            return decode_json(answer, kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"sent an answer that cannot be read: {error}") from error

    def _error(self, problem: str) -> BoardError:
        return BoardError(
            f"board {self.name} {problem}",
            found_in=f"ssh://{self.name}",
            remedy="look at the board, its Python and its packages",
        )


def _files_of_variant(request: ProbeRequest) -> dict[str, Path]:
    root = Path(request.bundle_folder)
    files = [path for path in root.rglob("*") if path.is_file()]
    names = [path.relative_to(root).as_posix() for path in files]
    own = {MANIFEST_FILE, *(file.path for file in request.variant.facts.files)}
    return {name: root / name for name in names if name in own or is_golden(name)}


def _is_race(answer: RaceAnswer, request: RaceRequest) -> bool:
    rows = answer.times_s
    return (
        len(rows) == len(request.models)
        and len({len(row) for row in rows}) == 1
        and bool(rows[0])
        and all(math.isfinite(time_s) and time_s >= 0.0 for row in rows for time_s in row)
    )


class BoardFiles:
    """Folders on a board, named by the content of their files.

    Args:
        link: The connection; a new connection has an empty folder.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sent: dict[str, None] = {}
        self._digests: dict[tuple[str, int, int], str] = {}

    def forget(self) -> None:
        """Forget what was sent: the folder on the board is another."""
        self._sent.clear()

    def send_model(self, path: Path) -> str:
        """Send a model with its external data, and return its path on the board."""
        model = onnx.load(path, load_external_data=False)
        root = path.parent.resolve()
        files = {file.relative_to(root).as_posix(): file for file in external_files(path, model)}
        return f"{self.send_folder({**files, path.name: path})}/{path.name}"

    def send_folder(self, files: Mapping[str, Path]) -> str:
        """Send files by their relative paths, and return the path of their folder on the board."""
        names = "".join(f"{name}\0{self._digest(files[name])}\0" for name in sorted(files))
        folder = f"files/{hashlib.sha256(names.encode()).hexdigest()[:32]}"
        if folder not in self._sent:
            while len(self._sent) >= _MOST_FOLDERS:
                oldest = next(iter(self._sent))
                del self._sent[oldest]
                self._link.remove(oldest)
            for name, file in files.items():
                self._link.put(f"{folder}/{name}", file)
        self._sent.pop(folder, None)
        self._sent[folder] = None
        return f"{self._link.folder}/{folder}"

    def _digest(self, path: Path) -> str:
        status = path.stat()
        key = (str(path), status.st_mtime_ns, status.st_size)
        if key not in self._digests:
            with path.open("rb") as file:
                self._digests[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[key]
