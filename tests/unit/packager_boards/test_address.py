"""Addresses of boards: nothing in an address can become an option of ssh."""

import pytest

from edgepack.errors import BuildError
from edgepack.packager.boards.address import BoardAddress, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh://board", BoardAddress(user="", host="board", port=None)),
        ("ssh://pi@Board.lab:2222", BoardAddress(user="pi", host="Board.lab", port=2222)),
        ("ssh://pi@board/", BoardAddress(user="pi", host="board", port=None)),
        (
            "ssh://pi@10.0.0.7:22/opt/edgepack/bin/python",
            BoardAddress(user="pi", host="10.0.0.7", port=22, python="/opt/edgepack/bin/python"),
        ),
        ("ssh://pi@[fe80::1]:22", BoardAddress(user="pi", host="fe80::1", port=22)),
    ],
)
def test_address_names_user_host_port_and_interpreter(text: str, expected: BoardAddress) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("board", "http://board", "ssh://", "ssh://-oProxyCommand=id", "ssh://a@-b"),
        *("ssh://-l@board", "ssh://pi:secret@board", "ssh://board:70000", "ssh://board:x"),
        *("ssh://board/opt/py thon", "ssh://board/opt/$(id)", "ssh://bo\nard", "ssh://board;id"),
    ],
)
def test_other_text_is_rejected_with_an_example(text: str) -> None:
    with pytest.raises(BuildError, match="does not name a board") as caught:
        parse_address(text)
    assert "ssh://USER@HOST[:PORT]" in (caught.value.remedy or "")


def test_no_argument_of_ssh_before_the_host_comes_from_a_word_with_a_hyphen() -> None:
    words = parse_address("ssh://pi@board:22").ssh_words
    assert words == ("-p", "22", "-l", "pi", "--", "board")
