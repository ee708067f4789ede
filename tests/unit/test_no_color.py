"""`NO_COLOR` in the environment asks for plain text."""

import click
import pytest

from edgepack import cli as program
from edgepack.errors import EdgepackError


@pytest.mark.parametrize(("wanted", "color"), [("1", False), ("", None)])
def test_no_color_asks_for_plain_messages(
    wanted: str, color: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool | None] = []

    def refuse(*, color: bool | None) -> None:
        told.append(color)
        raise EdgepackError("no")

    def echo(_: str, *, err: bool, color: bool | None) -> None:
        told.append(color)
        assert err

    monkeypatch.setattr(program, "cli", refuse)
    monkeypatch.setattr(click, "echo", echo)
    monkeypatch.setenv("NO_COLOR", wanted)
    with pytest.raises(SystemExit):
        program.run_command()
    assert told == [color, color]
