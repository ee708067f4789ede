"""Text of unsigned manifests and reports, printed: no text steers the terminal."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from edgepack.cli import cli
from tests.integration.conftest import Keys
from tests.simulators.bundles import ExampleBundle, make_bundle

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\nverified\u202e\x00"


@pytest.fixture
def bundle(tmp_path: Path, release_keys: Keys) -> ExampleBundle:
    return make_bundle(tmp_path / "good", release_keys[0])


def hostile(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield the document with a single string replaced, once for each string and each key."""
    for path, text in list(_strings(document)):
        copied = json.loads(json.dumps(document))
        place = copied
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = text + STEERING
        yield "/".join(map(str, path)), copied
        if isinstance(place, dict) and isinstance(path[-1], str):
            copied = json.loads(json.dumps(document))
            place = copied
            for key in path[:-1]:
                place = place[key]
            place[path[-1] + STEERING] = place.pop(path[-1])
            yield f"key {'/'.join(map(str, path))}", copied


def _strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield path, value
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _strings(inner, (*path, key))


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


def check(output: str, what: str) -> None:
    steering = [letter for letter in output if not letter.isprintable() and letter != "\n"]
    assert not steering, (what, steering)


def check_lines(output: str, what: str) -> None:
    check(output, what)
    assert not any(line.startswith("verified") for line in output.splitlines()), what


def test_no_command_prints_an_escape_sequence_of_an_unsigned_manifest(
    tmp_path: Path, bundle: ExampleBundle
) -> None:
    manifest = json.loads((bundle.folder / "manifest.json").read_bytes())
    extra = manifest["additional_metadata"]["edgepack"]
    extra.setdefault("tools", {"numpy": "2.0"})
    shown = 0
    for what, document in hostile(manifest):
        other = tmp_path / "bad"
        shutil.copytree(bundle.folder, other)
        (other / "manifest.json").write_text(json.dumps(document))
        for words in (
            ("inspect", other),
            ("inspect", other, "--json"),
            ("compare", bundle.folder, other),
            ("delta", bundle.folder, other),
        ):
            done = run(*words)
            shown += done.exit_code == 0
            check_lines(done.output, f"{words[0]} {what}")
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                check(str(done.exception), f"error of {words[0]} {what}")
        shutil.rmtree(other)
    assert shown > 10, "some of them are shown"
