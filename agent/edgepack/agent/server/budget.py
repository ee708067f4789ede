"""Budget of the bytes that running requests hold in memory."""


class Budget:
    """Bytes that all requests may hold together; used by the event loop's thread alone.

    Args:
        total_bytes: The budget.
    """

    def __init__(self, total_bytes: int) -> None:
        self._left = self._total = total_bytes

    def take(self, number: int) -> bool:
        """Reserve bytes; return False, and reserve nothing, if too few are left."""
        if number > self._left:
            return False
        self._left -= number
        return True

    def take_response(self, number: int) -> bool:
        """Reserve bytes of a response; one larger than the budget must be alone in memory."""
        if number > self._left < self._total:
            return False
        self._left -= number
        return True

    def give(self, number: int) -> None:
        """Return reserved bytes."""
        self._left += number
