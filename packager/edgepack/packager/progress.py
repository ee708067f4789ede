"""How long work tells how far it is; whoever runs it decides how to show that."""

from typing import Protocol


class Progress(Protocol):
    """Receives what is being done and how far it is."""

    def __call__(self, what: str, done: int, total: int) -> None:
        """Says that `done` of `total` steps of `what` are done; total 0 means unknown."""


def silent(what: str, done: int, total: int) -> None:
    """Shows nothing."""
