"""Methods of a running fleet for samples of devices."""

from pathlib import Path

from edgepack.bundle.keys import parse_public_key
from edgepack.errors import FleetError
from edgepack.fleet.database import samples, unsent
from edgepack.fleet.database.candidates import Asked, select_candidates
from edgepack.fleet.documents.samples import (
    CaptureRequest,
    CaptureView,
    RemovedSamples,
    SampleView,
    SealedSample,
)
from edgepack.fleet.server.parts import Parts


class SampleMethods(Parts, frozen=True, kw_only=True):
    """Methods for samples of devices."""

    def capture(self, request: CaptureRequest) -> CaptureView:
        """Ask devices for samples of a model.

        Raises:
            EdgepackError: The key is not an elliptic-curve public key, no time is left to upload,
                the selection is invalid, or no selected device serves the model.
        """
        parse_public_key(request.recipient.encode(), Path("recipient"))
        with self.store.transaction(self.by) as session:
            found = select_candidates(session, request.selector, Asked(request.model))
            names = [one.id for one in found if one.runs is not None]
            if not names:
                raise FleetError(
                    f"no device of {request.selector} serves {request.model!r}",
                    remedy="edgepack fleet devices lists the devices with their models",
                )
            row, publications = samples.begin(session, request, names, self.store.now())
            unsent.add(session, publications)
            view = samples.show_capture(session, row, self.store.now())
        self.inbox.wake()
        return view

    def captures(self, model: str) -> tuple[CaptureView, ...]:
        """Return the last requests for samples, of a model or of all models."""
        with self.store.reading() as session:
            return samples.list_captures(session, model, self.store.now())

    def samples(self, model: str, after: str, limit: int) -> tuple[SampleView, ...]:
        """Return a page of a model's encrypted samples."""
        with self.store.reading() as session:
            return samples.list_samples(session, model, after, limit)

    def sample(self, model: str, device: str, sample: str) -> SealedSample:
        """Return the content of an encrypted sample.

        Raises:
            FleetError: The fleet has no such sample.
        """
        with self.store.reading() as session:
            row = samples.find(session, model, device, sample)
            return SealedSample(tenant=self.tenant, content=samples.content_of(session, row))

    def remove_samples(self, model: str) -> RemovedSamples:
        """Delete a model's samples."""
        with self.store.transaction(self.by) as session:
            return RemovedSamples(count=samples.remove(session, model, self.store.now()))
