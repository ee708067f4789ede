"""Cache of verdicts: a variant that was right here remains right while its circumstances are the
same.

A verdict stands for a bundle, variant, provider, runtime and set of drivers on a processor. If any
of these changes (a driver update, another ONNX Runtime) the verdict is void, and the variant is
probed again. Only "right" is kept: a failure may have had a passing reason.
"""

import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import msgspec

from edgepack.agent.state.state_file import StateFile
from edgepack.bundle.golden_pictures import PICTURES_FOLDER
from edgepack.bundle.manifest import Variant
from edgepack.versions import Format, Version
from edgepack.wire.reports import DeviceFacts, ProbeResult

logger = logging.getLogger(__name__)

VERDICTS_FILE = "verdicts.json"
MAX_VERDICTS = 64


class ProbeCacheKey(msgspec.Struct, frozen=True, kw_only=True):
    """Key of a cached probe result: all facts that the result depends on.

    Attributes:
        digest, variant, provider: Probed variant and provider.
        provider_version, runtime, drivers: Software of the probe.
        hardware: Hardware of the probe.
        threads: Threads within an operator.
        system: Operating system, processor features, Python and edgepack.
        pillow: Version of Pillow, for a bundle with golden pictures; else "".
    """

    digest: str
    variant: str
    provider: str
    provider_version: str
    runtime: str
    drivers: dict[str, str]
    hardware: str
    threads: int
    system: str
    pillow: str = ""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A probe's result and the circumstances of the probe."""

    circumstances: ProbeCacheKey
    result: ProbeResult


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file's content."""

    verdicts: tuple[Verdict, ...]


VERDICTS = Format("list of verdicts", _Kept, Version(1, 0))


def probe_cache_key(
    digest: str, variant: Variant, facts: DeviceFacts, *, threads: int, pillow: str = ""
) -> ProbeCacheKey:
    """Return the cache key of a variant's probe on this device now.

    Args:
        digest, variant: The probed variant.
        facts: The device.
        threads: Threads within an operator.
        pillow: See `ProbeCacheKey`.
    """
    versions = {provider.name: provider.version for provider in facts.providers}
    return ProbeCacheKey(
        digest=digest,
        variant=variant.name,
        provider=variant.provider,
        provider_version=versions.get(variant.provider, ""),
        runtime=facts.runtime,
        drivers=facts.drivers,
        hardware=f"{facts.hardware_class} {facts.soc}",
        threads=threads,
        system=f"{facts.os} {facts.firmware}, Python {facts.python}, "
        f"edgepack {facts.agent_version}, " + " ".join(facts.cpu_features),
        pillow=pillow,
    )


def pillow_of(bundle_folder: Path) -> str:
    """Return the version of Pillow that prepares a bundle's golden pictures, `none` if absent.

    Returns:
        "" for a bundle without golden pictures.
    """
    if not (bundle_folder / PICTURES_FOLDER).is_dir():
        return ""
    try:
        return metadata.version("pillow")
    except metadata.PackageNotFoundError:
        return "none"


class Verdicts:
    """The verdicts of a device, the newest last, on the disk.

    Args:
        state_dir: The agent's state folder.
    """

    def __init__(self, state_dir: Path) -> None:
        self._file = StateFile(state_dir / VERDICTS_FILE, VERDICTS)
        try:
            found = self._file.load()
        except OSError as error:
            logger.warning("verdicts cannot be read now, so variants prove themselves: %s", error)
            found = None
        self._kept = found.verdicts if found else ()

    def get_or_probe(
        self, circumstances: ProbeCacheKey, probe: Callable[[], ProbeResult]
    ) -> ProbeResult:
        """Return the verdict reached before in the same circumstances, else the probe's, kept.

        A verdict that cannot be stored is valid, too; the variant is only probed again.
        """
        known = self.recall(circumstances)
        if known is not None:
            logger.info("variant=%s was right here before, as nothing changed", known.variant)
            return known
        result = probe()
        try:
            self.keep(circumstances, result)
        except OSError as error:
            logger.warning("the verdict on %s cannot be kept: %s", result.variant, error)
        return result

    def recall(self, circumstances: ProbeCacheKey) -> ProbeResult | None:
        """Return the verdict that was reached in the same circumstances, if any."""
        for verdict in self._kept:
            if verdict.circumstances == circumstances:
                return verdict.result
        return None

    def forget(self, digest: str) -> None:
        """Forget the verdicts on a bundle until the agent ends, so that probes run again."""
        self._kept = tuple(one for one in self._kept if one.circumstances.digest != digest)

    def keep(self, circumstances: ProbeCacheKey, result: ProbeResult) -> None:
        """Keep a verdict "right"; ignore other verdicts.

        Raises:
            OSError: The disk is full; the verdict then counts until the agent restarts.
        """
        if not result.right:
            return
        others = [one for one in self._kept if one.circumstances != circumstances]
        kept = Verdict(circumstances=circumstances, result=result)
        self._kept = (*others, kept)[-MAX_VERDICTS:]
        if not self._file.is_sealed:
            self._file.save(_Kept(verdicts=self._kept))
