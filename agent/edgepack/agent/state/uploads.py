"""Requests of the fleet for samples, as a device carries them out: `uploads.json`."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from edgepack.agent.state.captured import CaptureSettings, SealedRequest
from edgepack.agent.state.state_file import StateFile
from edgepack.versions import Format, Version
from edgepack.wire.orders import CaptureOrder

UPLOADS_FILE = "uploads.json"

UploadState = Literal["REFUSED", "COLLECTING", "UPLOADING", "DONE"]


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A request for samples of a model.

    Attributes:
        order: The request.
        until: End of the choice, seconds since the epoch.
        state: `REFUSED` without consent; `COLLECTING` until the end of the choice; `UPLOADING`
            until no sample is left; then `DONE`.
        because: Reason of a refusal or a pause.
        uploaded: Samples that the fleet has.
        refused: Samples that the fleet did not take.
    """

    order: CaptureOrder
    until: float
    state: UploadState = "COLLECTING"
    because: str = ""
    uploaded: int = 0
    refused: int = 0


class Uploads(msgspec.Struct, frozen=True, kw_only=True):
    """All requests, and the quota of the day.

    Attributes:
        models: By model: its last request.
        day: Day of the quota, days since the epoch (UTC).
        sent_bytes: Bytes sent on that day, counted before they are sent.
    """

    models: dict[str, Upload] = {}
    day: int = 0
    sent_bytes: int = 0

    def settings(self, base: CaptureSettings, place: Callable[[str, str], str]) -> CaptureSettings:
        """Return the settings for serving processes.

        Args:
            base: Settings of the device.
            place: Returns the place of samples, from model and request.
        """
        requests, uploading = {}, []
        for model, upload in self.models.items():
            order = upload.order
            if upload.state == "COLLECTING":
                requests[model] = SealedRequest(
                    request=order.request,
                    samples=order.samples,
                    of=order.of,
                    recipient=order.recipient,
                    place=place(model, order.request),
                )
            elif upload.state == "UPLOADING":
                uploading.append(order.request)
        return msgspec.structs.replace(base, requests=requests, uploading=tuple(uploading))


UPLOADS = Format("requests for samples", Uploads, Version(1, 0))


def uploads_file(state_dir: Path) -> StateFile[Uploads]:
    """Return the file in the state folder."""
    return StateFile(state_dir / UPLOADS_FILE, UPLOADS)
