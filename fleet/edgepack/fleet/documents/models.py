"""Models: their releases, what each holds, and what the fleet sees of it."""

import msgspec

from edgepack.bundle.manifest import Accuracy, Placement
from edgepack.fleet.documents.releases import ReleaseView
from edgepack.fleet.documents.rollouts import LatencyView


class ModelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A model of which the fleet holds releases.

    Attributes:
        name: Its name.
        releases: How many the fleet holds.
        newest: The one that was published last.
        devices: Devices that have the model.
    """

    name: str
    releases: int
    newest: ReleaseView
    devices: int


class VariantView(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of a release: what its build measured, and what devices say of it.

    Attributes:
        name: Its name.
        provider, device: The execution provider and the kind of hardware that it is for.
        precision: `a8w8`, `fp32` …
        size_bytes: Its files together.
        accuracy: What the build measured against the float model.
        placement: The nodes that the provider took at build time.
        degraded: Whether a gate was overridden.
        devices: Devices that run it.
        looked_at: How many of them were asked what their probe found.
        golden_error: The greatest relative error (NRMSE) that one of these had on the golden
            samples; None where none said.
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
        release: What it is.
        variants: In order of preference.
        devices: Devices that run it.
        latency: What its real inferences took, by what ran them; devices are not counted there.
        has_report: Whether the bundle carries the report of its build.
    """

    release: ReleaseView
    variants: tuple[VariantView, ...]
    devices: int
    latency: tuple[LatencyView, ...]
    has_report: bool
