"""Fetching from the sources of the settings, before the broker delivers the rest."""

import logging
from collections.abc import Sequence

from edgepack.agent.config import AgentConfig, SourceConfig
from edgepack.agent.transfer.ahead import Taken, take_ahead
from edgepack.agent.transfer.download import Download
from edgepack.agent.transfer.source import SourceError
from edgepack.agent.transfer.source_layout import find_remotes
from edgepack.bandwidth import Bandwidth, parse_bandwidth
from edgepack.bundle.manifest import Manifest
from edgepack.halt import Halt
from edgepack.web.urls import shown_url
from edgepack.wire.orders import RunModel

log = logging.getLogger(__name__)


def take_from_sources(
    config: AgentConfig,
    offer: RunModel,
    manifest: Manifest,
    download: Download,
    halt: Halt,
) -> tuple[Taken, ...]:
    """Request missing chunks from each source in turn.

    Args:
        config: The settings.
        offer: The bundle.
        manifest: Its manifest, verified.
        download: The bundle, of which nobody else takes anything meanwhile.
        halt: Ends the work early.

    Returns:
        Result of each requested source.

    Raises:
        OSError: The disk is full.
        HaltedError: The work was halted.
    """
    found = []
    bandwidth = parse_bandwidth(config.limits.bandwidth)
    try:
        for source in config.transfer.sources:
            if download.is_complete:
                break
            taken = _take(source, offer, manifest, download, halt, bandwidth)
            log.info(
                "source=%s bundle=%s taken_bytes=%d because=%s",
                taken.title,
                offer.bundle.digest,
                taken.size_bytes,
                taken.because or "-",
            )
            found.append(taken)
    finally:
        download.note()
    return tuple(found)


def _take(
    config: SourceConfig,
    offer: RunModel,
    manifest: Manifest,
    download: Download,
    halt: Halt,
    bandwidth: Bandwidth,
) -> Taken:
    # Loaded where it is needed: urllib3 takes 0.06 s and 14 MB.
    from edgepack.agent.transfer.configured import open_source, template_of

    try:
        source = open_source(config)
    except SourceError as error:
        return Taken(title=shown_url(config.url), size_bytes=0, because=str(error))
    return take_ahead(
        source,
        lambda wanted: find_remotes(template_of(config), offer, manifest, wanted.missing()),
        download,
        halt=halt,
        bandwidth=bandwidth,
    )


def describe_fallback(taken: Sequence[Taken], missing_bytes: int) -> str:
    """Return wanted source, chosen source and reason in a sentence."""
    wanted = ", then ".join(one.title for one in taken)
    because = "; ".join(f"{one.title}: {one.because or 'it has not all of it'}" for one in taken)
    return f"wanted {wanted}; chose the broker for {missing_bytes} bytes, because {because}"


def describe_taken(taken: Sequence[Taken]) -> str:
    """Return the bytes from each source in words; "" without any."""
    return "".join(f"; {one.size_bytes} came from {one.title}" for one in taken if one.size_bytes)
