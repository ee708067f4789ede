"""Pace of contestants that write texts in turn: a prompt each, round by round."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.generative.contestants import Command

_CHILD = {"OMP_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1"}


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """Pace of a contestant: medians of rounds.

    Attributes:
        first_ms, first_cpu_ms: Time and processor time from the prompt to the first token.
        tokens_per_cpu_s: Further tokens per second of processor time.
        tokens_per_s: Further tokens per second; other programs of the machine take their part.
        relative: Processor time per further token relative to the first contestant, median of the
            rounds' ratios.
        peak_bytes: Most memory of the process.
    """

    first_ms: float
    first_cpu_ms: float
    tokens_per_cpu_s: float
    tokens_per_s: float
    relative: float
    peak_bytes: int


class _Writer:
    """A contestant's process."""

    def __init__(self, command: Command, log: Path) -> None:
        with log.open("wb") as opened:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=opened,
                text=True,
                env={**os.environ, **_CHILD},
            )
        self.is_ready = bool(self._read())

    def ask(self, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
        """Let it write a text; empty if it failed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"prompt": list(prompt), "tokens": tokens}), file=self._process.stdin)
            self._process.stdin.flush()
        return json.loads(self._read() or "{}")

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def _writing(commands: Mapping[str, Command], logs: Path) -> Iterator[dict[str, _Writer]]:
    writers = {
        name: _Writer(command, logs / f"race-{name.replace(' ', '-')}.log")
        for name, command in commands.items()
    }
    try:
        yield {name: writer for name, writer in writers.items() if writer.is_ready}
    finally:
        for writer in writers.values():
            writer.end()


def measure_pace(
    commands: Mapping[str, Command], logs: Path, prompt: Sequence[int], tokens: int, rounds: int
) -> dict[str, Pace]:
    """Let contestants write in turn, and return the pace of each that could.

    Args:
        commands: By name, the first is the one that others are compared with.
        logs: Folder for their output.
        prompt: Tokens of the prompt.
        tokens: Tokens of a text.
        rounds: Texts of each; one before them is not counted.
    """
    answers: dict[str, list[dict[str, Any]]] = {}
    with _writing(commands, logs) as writers:
        for number in range(rounds + 1):
            turn = list(writers.items())
            for name, writer in turn if number % 2 else turn[::-1]:
                answer = writer.ask(prompt, tokens)
                if number and len(answer.get("tokens", ())) == tokens:
                    answers.setdefault(name, []).append(answer)
    first = next((answers[name] for name in commands if name in answers), [])
    paces = {}
    for name, own in answers.items():
        further = np.array([one["further_cpu_s"] for one in own])
        paces[name] = Pace(
            first_ms=float(np.median([one["first_s"] for one in own]) * 1000),
            first_cpu_ms=float(np.median([one["first_cpu_s"] for one in own]) * 1000),
            tokens_per_cpu_s=float((tokens - 1) / np.median(further)),
            tokens_per_s=float((tokens - 1) / np.median([one["further_s"] for one in own])),
            relative=float(
                np.median(
                    [
                        mine["further_cpu_s"] / its["further_cpu_s"]
                        for mine, its in zip(own, first, strict=False)
                    ]
                )
            ),
            peak_bytes=max(one["peak_bytes"] for one in own),
        )
        print(name, paces[name], file=sys.stderr, flush=True)
    return paces
