"""Boards of a build: reached at its start, and left as they were at its end."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from edgepack.errors import BuildError
from edgepack.packager.boards.address import parse_address
from edgepack.packager.boards.board_process import BoardProcess
from edgepack.packager.boards.link import Link
from edgepack.packager.progress import BuildStep, Progress, silent
from edgepack.packager.runtime.board import Board


class Boards:
    """The boards that a build reached; their connections end with the block.

    Args:
        progress: Called for each board.
    """

    def __init__(self, progress: Progress = silent) -> None:
        self._progress = progress
        self._processes: list[BoardProcess] = []
        self._token = secrets.token_hex(8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        for process in self._processes:
            process.close()

    def reach(self, urls: Sequence[str], wheels: Path | None) -> tuple[Board, ...]:
        """Connect to boards and read their facts.

        Args:
            urls: Their addresses; see `parse_address`.
            wheels: Folder of wheels for packages that a board lacks; None for none.

        Raises:
            BuildError: An address is malformed, or named twice.
            BoardError: A board cannot be reached, or cannot prove anything.
        """
        addresses = [parse_address(url) for url in urls]
        names = [address.name for address in addresses]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise BuildError(
                f"board {twice} is named twice", found_in="--prove", remedy="name each board once"
            )
        boards = []
        for address in addresses:
            self._progress(BuildStep(what=f"connecting to board {address.name}"))
            process = BoardProcess(Link(address, wheels, self._token))
            self._processes.append(process)
            boards.append(Board(name=address.name, facts=process.read_facts(), process=process))
        return tuple(boards)
