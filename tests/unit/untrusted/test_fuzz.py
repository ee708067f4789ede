"""Whatever bytes come in, every parser says so in a sentence, in bounded memory, or reads them.

Changes follow from a seed; keys, and what they sign, are new each time.
`EDGEPACK_FUZZ_ROUNDS=20000` looks further.
"""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulators.mutations import mutated
from tests.unit.untrusted.parsers import all_parsers
from tests.unit.untrusted.table import Parser

pytestmark = pytest.mark.filterwarnings("ignore::cryptography.utils.CryptographyDeprecationWarning")

ROUNDS = int(os.environ.get("EDGEPACK_FUZZ_ROUNDS", "80"))
"""Changes of each valid input."""
MOST_BYTES = 32 * 1024 * 1024
"""Memory that reading a few hundred kilobytes may take."""
MEASURED_TOGETHER = 10
"""Changes after which the measurement of memory restarts, which takes longer than to read."""
MOST_WORDS = 5000
"""Characters of an error: what came in is not printed at length."""


@pytest.fixture(scope="module")
def parsers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Parser]:
    return {parser.name: parser for parser in all_parsers(tmp_path_factory.mktemp("parsers"))}


NAMES = (
    *("manifest", "envelope", "archive", "delta", "golden samples", "feedback"),
    *("encrypted file", "sealed content key", "recipient's certificate"),
    *("public key", "private key", "certificate request", "certificate to renew"),
    *("certificate that came", "recipient's certificate, inside", "enrolment package"),
    "artifact of a registry",
    *("message desired", "message reported", "message need", "message telemetry"),
    *("message event", "message batch", "message session", "signed batch"),
    *("message of samples desired", "message of samples piece", "message of samples taken"),
    *("encrypted sample", "state: requests for samples", "state: dropped samples"),
    *("bitmap of a need", "latency histogram", "chunk frame", "repair frame"),
    *("coded frame", "coded chunk"),
    *("metadata 1.root.json", "metadata targets.json", "metadata releases.json"),
    *("metadata targets.json from a publisher", "metadata releases.json from a publisher"),
    *("metadata snapshot.json", "metadata timestamp.json", "metadata desired"),
    *("state: pointer", "state: journal", "state: status", "state: outage"),
    "state: release counters",
    *("state: capture settings",),
    *("state: note of a download", "state: verdicts", "state: place of the key"),
    *("state: latency file", "artifact", "reference", "docker's settings"),
    *("answer of a webhook", "provider's word of itself", "provider's keys"),
    *("provider's answer with a token", "ID token", "claims that the provider signed"),
    *("ranges of a source", "file of a web server"),
    *("token of a registry", "reasons of a registry", "challenge of a registry"),
    *("handshake of a WebSocket", "frames of a WebSocket"),
    *("wiring of a decoder", "tokenizer", "settings of a tokenizer", "chat template"),
    *("request for an answer", "request for a text"),
)


def _memory_bytes(name: str) -> int:
    (line,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(line) * 1024


def _restart_peak() -> int:
    """Set the process's greatest memory to its memory now, which is returned."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory_bytes("VmRSS")


def test_every_parser_of_the_table_is_tried(parsers: dict[str, Parser]) -> None:
    assert sorted(parsers) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_others_are_read_or_refused_in_a_sentence(
    name: str, parsers: dict[str, Parser], tmp_path: Path
) -> None:
    parser = parsers[name]
    read = refused = before = 0
    for number, content in enumerate(parser.seeds):
        for turn, changed in enumerate(mutated(content, parser.seeds, number, ROUNDS)):
            if turn % MEASURED_TOGETHER == 0:
                before = _restart_peak()
            try:
                parser.read(changed)
                read += 1
            except parser.errors as error:
                refused += 1
                _check_words(str(error))
            except Exception as error:
                (tmp_path / "changed").write_bytes(changed)
                where = f"{name}, input {number}, change {turn}: {tmp_path / 'changed'}"
                raise AssertionError(where) from error
            took = _memory_bytes("VmHWM") - before
            assert took < MOST_BYTES, (name, number, turn, took)
    assert refused or not parser.errors, "no change was refused: the test shows nothing"


@pytest.mark.parametrize("name", [name for name in NAMES if "publisher" not in name])
def test_what_is_valid_is_read(name: str, parsers: dict[str, Parser]) -> None:
    for content in parsers[name].seeds:
        parsers[name].read(content)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(content=st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_read_or_refused_in_a_sentence(
    name: str, parsers: dict[str, Parser], content: bytes
) -> None:
    try:
        parsers[name].read(content)
    except parsers[name].errors as error:
        _check_words(str(error))


def _check_words(words: str) -> None:
    assert all(letter.isprintable() or letter == "\n" for letter in words), ascii(words)[:500]
    assert len(words) <= MOST_WORDS, words[:500]
