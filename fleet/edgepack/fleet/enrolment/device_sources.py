"""Bundle sources of devices (web servers and registries), as configured at the fleet."""

from collections.abc import Sequence

from edgepack.errors import DeviceError, FleetError

EXAMPLE = "https://files.example.com/{name}-{version}.edgepack"
MAX_SOURCES = 8
"""A device asks one after the other."""


def check_sources(urls: Sequence[str]) -> None:
    """Reject sources that no device could use.

    Raises:
        FleetError: A URL is invalid, or there are too many.
    """
    if len(urls) > MAX_SOURCES:
        raise FleetError(f"{len(urls)} sources were named, {MAX_SOURCES} is the most")
    if urls:
        # Loaded where it is needed: urllib3 takes 0.06 s.
        from edgepack.agent.transfer.configured import check_urls

        try:
            check_urls(urls)
        except DeviceError as error:
            raise FleetError(
                error.problem, found_in="--source", remedy=f"--source '{EXAMPLE}'"
            ) from error
