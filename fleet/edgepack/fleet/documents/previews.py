"""Previews of a rollout or a rollback, as the API returns them."""

from typing import Literal

import msgspec

from edgepack.fleet.documents.releases import BundleHead
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.wire.messages import BundleRef

Outcome = Literal["adds", "replaces", "nothing", "unfit", "refused"]
OUTCOMES: tuple[Outcome, ...] = ("adds", "replaces", "nothing", "unfit", "refused")


class PreviewRequest(RolloutSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rollout to look at before it is started, and before its bundle is uploaded.

    Attributes:
        head: What the bundle is.
        selector: Its devices.
    """

    head: BundleHead
    selector: Selector


class PreviewPart(msgspec.Struct, frozen=True, kw_only=True):
    """Devices to which a rollout will mean the same.

    Attributes:
        outcome: `adds` a model that they do not run, `replaces` the release that they run, means
            `nothing` to do, is `unfit` for them, so that they will reject it, or is `refused`.
        devices: How many.
        examples: Ids of some of them.
        because: The reason in a few words, and for a device that it is unfit for, as an example,
            what is wrong there; "" where the outcome says it all.
        runs: What serves on them now; None while nothing of that name does.
    """

    outcome: Outcome
    devices: int
    examples: tuple[str, ...]
    because: str
    runs: BundleRef | None


class RolloutPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Preview of a rollout that would start now.

    Attributes:
        bundle: What it would roll out.
        selector: Its devices, in words.
        waves: Devices in each wave.
        parts: Its devices by what it means to them; refused ones last.
        counts: Devices by outcome.
        refusal: Why it would be refused; "" when it would be started.
        remedy: What to do instead; "" for nothing.
        note: What a person may not have meant, such as that these are all devices; "" for nothing.
    """

    bundle: BundleRef
    selector: str
    waves: tuple[int, ...]
    parts: tuple[PreviewPart, ...]
    counts: dict[str, int]
    refusal: str = ""
    remedy: str = ""
    note: str = ""


class RollbackPart(msgspec.Struct, frozen=True, kw_only=True):
    """Devices to which a rollback will mean the same.

    Attributes:
        to: The release that they go back to; None when they cannot.
        devices: How many.
        wave_count: In how many waves; 0 when they cannot.
        examples: Ids of some of them.
        because: Why they cannot; "" when they can.
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
        ends: Id of the rollout that ends with it; "" for none.
        parts: The devices that committed that release, by what they go back to.
        refusal: Why it would be refused; "" when it would be started.
    """

    takes_back: BundleRef
    ends: str
    parts: tuple[RollbackPart, ...]
    refusal: str = ""
