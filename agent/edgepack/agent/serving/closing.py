"""Base of objects that are closed after use."""

from abc import ABC, abstractmethod
from typing import Self


class Closing(ABC):
    """Context manager that closes itself at its end."""

    @abstractmethod
    def close(self) -> None:
        """Leave what is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
