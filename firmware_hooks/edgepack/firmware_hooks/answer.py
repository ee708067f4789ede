"""Answer of a hook: an exit code, and a line with the reason."""

import argparse
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple, NoReturn

GO = 0
RETRY = 21
REFUSE = 1

Done = subprocess.CompletedProcess[str]


class Answer(NamedTuple):
    """A hook's answer.

    Attributes:
        exit_code: `GO`, `RETRY` or `REFUSE`.
        because: A line; the agent reports the last line of a hook's output.
    """

    exit_code: int
    because: str


class SettingsError(Exception):
    """A hook received unknown or unusable settings."""


class HookParser(argparse.ArgumentParser):
    """Parses a hook's settings: no abbreviations, and a mistake is a `SettingsError`.

    Args:
        module_doc: Docstring of the hook's module, shown by --help.
    """

    def __init__(self, prog: str, module_doc: str) -> None:
        super().__init__(
            prog=prog,
            description=module_doc.removeprefix("Hook: "),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise SettingsError(message)


class CommandError(Exception):
    """A command that a hook relies on is missing, failed or did not end in time."""


def answer_with(
    parser: HookParser,
    decide: Callable[[argparse.Namespace], Answer],
    arguments: Sequence[str] | None,
) -> int:
    """Run a hook: read the settings, decide, print the reason, return the exit code."""
    try:
        answer = decide(parser.parse_args(arguments))
    except SettingsError as error:
        answer = Answer(REFUSE, f"settings of hook {parser.prog} are wrong: {error}")
    print(answer.because, flush=True)
    return answer.exit_code


def run_command(words: Sequence[str], *, timeout_s: float) -> Done:
    """Run a command without a shell; the caller evaluates the result.

    The output goes through files: a process that the command leaves behind would hold a pipe open.
    SWUpdate 2022.12 leaves one now and then when it refuses an artefact. The agent ends what is
    left when the hook ends.

    Raises:
        CommandError: The command could not be started or did not end in time.
    """
    try:
        with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
            done = subprocess.run(
                words, stdout=stdout, stderr=stderr, timeout=timeout_s, check=False
            )
            return Done(words, done.returncode, *(_read(file) for file in (stdout, stderr)))
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"'{' '.join(words)}' did not end within {timeout_s:g} s") from error
    except OSError as error:
        raise CommandError(f"'{words[0]}' cannot be run: {error.strerror}") from error


def _read(output: IO[bytes]) -> str:
    output.seek(0)
    return output.read().decode(errors="replace")


def last_words(done: Done) -> str:
    """Return the last line that a command wrote, stderr first; its exit code without output."""
    said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
    return said or f"exit code {done.returncode}"
