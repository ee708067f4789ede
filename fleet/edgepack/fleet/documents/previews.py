"""Previews of a rollout or a rollback, as the API returns previews."""

from typing import Literal

import msgspec

from edgepack.fleet.documents.gates import Finding
from edgepack.fleet.documents.releases import BundleHead
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.wire.orders import BundleRef

Outcome = Literal["adds", "replaces", "nothing", "unfit", "refused"]
OUTCOMES: tuple[Outcome, ...] = ("adds", "replaces", "nothing", "unfit", "refused")


class PreviewRequest(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout to preview before its start and before the upload of its bundle.

    Attributes:
        head: Manifest and signature of the bundle.
        selector: Its devices.
    """

    head: BundleHead
    selector: Selector


class PreviewPart(msgspec.Struct, frozen=True, kw_only=True):
    """Devices to which a rollout will mean the same.

    Attributes:
        outcome: `adds` a new model, `replaces` the running release, `nothing` to do, `unfit` (the
            devices will reject the release), or `refused`.
        devices: How many.
        examples: Ids of examples.
        because: The reason in a few words, for `unfit` from an example device; "" if the outcome is
            enough.
        runs: The serving release; None while no release of that name serves.
    """

    outcome: Outcome
    devices: int
    examples: tuple[str, ...]
    because: str
    runs: BundleRef | None


class RolloutPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a rollout that would start now.

    Attributes:
        bundle: The release to roll out.
        selector: Its devices, in words.
        waves: Devices in each wave.
        parts: Its devices by outcome; refused devices last.
        counts: Devices by outcome.
        refusal: Reason of a rejection; "" if the rollout would start.
        remedy: Remedy; "" for none.
        note: Possible oversight, such as a selection of all devices; "" for none.
        finds: Least changes that the gates find, by hardware class and wave.
    """

    bundle: BundleRef
    selector: str
    waves: tuple[int, ...]
    parts: tuple[PreviewPart, ...]
    counts: dict[str, int]
    refusal: str = ""
    remedy: str = ""
    note: str = ""
    finds: tuple[Finding, ...] = ()


class RollbackPart(msgspec.Struct, frozen=True, kw_only=True):
    """Devices to which a rollback will mean the same.

    Attributes:
        to: The release that the devices go back to; None for none.
        devices: How many.
        wave_count: Number of waves; 0 for none.
        examples: Ids of examples.
        because: Reason why the devices cannot go back; "" if the devices can.
    """

    to: BundleRef | None
    devices: int
    wave_count: int
    examples: tuple[str, ...]
    because: str


class RollbackPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a rollback that would start now.

    Attributes:
        takes_back: The release that devices leave.
        ends: Id of the rollout under way that the rollback ends; "" for none.
        parts: The devices that committed that release, by the release to go back to.
        refusal: Reason of a rejection; "" if the rollback would start.
        closes: Id of the finished rollout that stops to bring its release to devices that join;
            "" for none.
    """

    takes_back: BundleRef
    ends: str
    parts: tuple[RollbackPart, ...]
    refusal: str = ""
    closes: str = ""

    @property
    def effect(self) -> str:
        """Effect on the named rollout, as a sentence without its end; "" for none."""
        if self.closes:
            return f"{self.closes} is over, and brings its release to no device that joins later"
        return self.ends and f"{self.ends} ends"
