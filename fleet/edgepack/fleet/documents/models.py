"""Models: releases, their contents, and the fleet's measurements."""

import msgspec

from edgepack.bundle.manifest import Accuracy, Placement
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import LatencyView


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model of which the fleet holds releases.

    Attributes:
        name: Its name.
        releases: How many the fleet holds.
        newest: The release published last.
        devices: Devices that have the model.
    """

    name: str
    releases: int
    newest: ReleaseView
    devices: int


class VariantView(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a release: the build's measurements and the devices' measurements.

    Attributes:
        name: Its name.
        provider, device: The variant's execution provider and kind of hardware.
        precision: `a8w8`, `fp32` …
        size_bytes: Its files together.
        accuracy: The build's measurements against the float model.
        placement: The nodes that the provider took at build time.
        degraded: Whether a gate was overridden.
        devices: Devices that run the variant.
        looked_at: Number of these devices with a read probe result.
        golden_error: The greatest relative error (NRMSE) of these devices on the golden samples;
            None without a report.
    """

    name: str
    provider: str
    device: str
    precision: str
    size_bytes: int
    accuracy: Accuracy
    placement: Placement
    degraded: bool
    devices: int = 0
    looked_at: int = 0
    golden_error: float | None = None


class ReleaseDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A release in full.

    Attributes:
        release: The release.
        variants: In order of preference.
        devices: Devices that run the release.
        latency: Latency of real inferences, by hardware and provider; without numbers of devices.
        has_report: Whether the bundle carries the report of its build.
    """

    release: ReleaseView
    variants: tuple[VariantView, ...]
    devices: int
    latency: tuple[LatencyView, ...]
    has_report: bool
