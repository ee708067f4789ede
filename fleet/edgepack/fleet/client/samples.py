"""Methods of `FleetClient` for samples of devices."""

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from edgepack.bundle.keys import PrivateKey, load_private_key, public_pem
from edgepack.bundle.recipients import load_recipient
from edgepack.bundle.sealed_samples import open_sample, sample_place
from edgepack.durable import write_file
from edgepack.errors import EdgepackError, FleetError
from edgepack.fleet.client.connection import Connection
from edgepack.fleet.documents.rollouts import Selector
from edgepack.fleet.documents.samples import (
    DAY_S,
    CaptureRequest,
    CaptureView,
    PulledSamples,
    RemovedSamples,
    SampleView,
    SealedSample,
)
from edgepack.text import counted
from edgepack.wire.orders import CAPTURE_REASONS, Reason

_EVERYBODY = Selector(kind="all")


class SampleMethods:
    """The methods of a `FleetClient` that are about samples of devices."""

    _connection: Connection

    def request_samples(
        self,
        model: str,
        recipient: str | Path,
        *,
        samples: int = 200,
        of: Sequence[Reason] = CAPTURE_REASONS,
        to: Selector = _EVERYBODY,
        collect_s: float = 3600.0,
        valid_s: float = 7 * DAY_S,
    ) -> CaptureView:
        """Ask devices for inputs of a model; each device's own settings must allow the upload.

        Args:
            model: The model's name.
            recipient: File of the public key, or a certificate, to which devices encrypt.
            samples: Samples in total; each device gives an equal share.
            of: Reasons for which a device chooses a sample.
            to: The devices; those that serve the model are asked.
            collect_s: Seconds during which devices choose; then they upload.
            valid_s: Seconds after which devices send no more.

        Returns:
            The request with its devices.

        Raises:
            FleetError: No selected device serves the model, no time is left to upload, nobody
                serves there, or the token is wrong.
            SignatureError: The file holds no usable public key.

        Example:
            ```python
            asked = fleet.request_samples("digits", "release.pub", samples=20, of=["doubt"])
            print(asked.capture, len(asked.devices))
            ```
        """
        request = CaptureRequest(
            model=model,
            selector=to,
            samples=samples,
            of=tuple(of),
            recipient=public_pem(load_recipient(Path(recipient))).decode(),
            collect_s=collect_s,
            valid_s=valid_s,
        )
        return self._connection.post("/v1/captures", CaptureView, request)

    def sample_requests(self, model: str = "") -> tuple[CaptureView, ...]:
        """Return the last requests for samples, with the state of each device.

        Args:
            model: Of this model; "" means all.

        Returns:
            The newest first, 20 at most.

        Raises:
            FleetError: Nobody serves there, or the token is wrong.

        Example:
            ```python
            for asked in fleet.sample_requests("digits"):
                print(asked.capture, [(one.device, one.state) for one in asked.devices])
            ```
        """
        return self._connection.get("/v1/captures", tuple[CaptureView, ...], model=model)

    def pull_samples(self, model: str, folder: str | Path, key: str | Path) -> PulledSamples:
        """Decrypt a model's samples into a folder for `--calibration`, `--captured` or
        `--evaluation`.

        Args:
            model: The model's name.
            folder: Is made, and must be empty.
            key: File of the private key.

        Returns:
            The numbers of written and skipped samples.

        Raises:
            FleetError: The folder is not empty or cannot be written, the fleet has no sample of the
                model, none can be read with the key, nobody serves there, or the token is wrong.
            SignatureError: The file holds no private key.

        Example:
            ```python
            from edgepack.fleet import FleetError

            try:
                print(fleet.pull_samples("digits", "captured", "release.key").samples)
            except FleetError as error:
                print(error.problem)
            ```
        """
        private, target = load_private_key(Path(key)), Path(folder)
        model_path = f"/v1/samples/{quote(model, safe='')}"
        listed = tuple(
            self._connection.pages(
                model_path, SampleView, key=lambda one: f"{one.device}/{one.sample}"
            )
        )
        if not listed:
            raise FleetError(
                f"the fleet has no sample of {model!r}",
                remedy=f"edgepack fleet capture {model} asks devices for samples",
            )
        try:
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(target.iterdir()):
                raise FleetError("the folder for the samples is not empty", found_in=str(target))
            known: set[bytes] = set()
            unreadable = 0
            for one in listed:
                where = f"{model_path}/{quote(one.device, safe='')}/{one.sample}"
                sealed = self._connection.get(where, SealedSample)
                plain = _open(sealed, model, one, private)
                digest = hashlib.sha256(plain).digest()
                if plain and digest not in known:
                    path = target / f"{len(known):05}-{one.device}.npz"
                    write_file(path, plain, mode=0o600, lasting=False)
                    known.add(digest)
                unreadable += not plain
        except OSError as error:
            raise FleetError(
                f"the samples cannot be written: {error.strerror}", found_in=str(target)
            ) from error
        if not known:
            raise FleetError(
                f"none of {counted(unreadable, 'sample')} of {model!r} can be read with this key",
                found_in=str(key),
                remedy="name the private key of the public key that edgepack fleet capture sent "
                "(--key)",
            )
        return PulledSamples(
            folder=str(target),
            samples=len(known),
            duplicates=len(listed) - unreadable - len(known),
            unreadable=unreadable,
        )

    def remove_samples(self, model: str) -> RemovedSamples:
        """Delete a model's samples in the fleet.

        Args:
            model: The model's name.

        Returns:
            The number of samples.

        Raises:
            FleetError: Nobody serves there, or the token is not an operator's.

        Example:
            ```python
            print(fleet.remove_samples("digits").count)
            ```
        """
        path = f"/v1/samples/{quote(model, safe='')}"
        return self._connection.delete(path, RemovedSamples)


def _open(sealed: SealedSample, model: str, listed: SampleView, key: PrivateKey) -> bytes:
    """Return the `.npz` of a sample; empty for anything else: the device is not trusted.

    NaN or infinity of a single sample would end the build.
    """
    # NumPy takes a sixth of the start of each command, and only this function needs NumPy.
    from numpy import isfinite

    from edgepack.bundle.plain_arrays import read_arrays

    place = sample_place(sealed.tenant, listed.device, model, listed.capture)
    try:
        plain = open_sample(sealed.content, key, place)
        arrays = read_arrays(io.BytesIO(plain), len(plain))
    except (EdgepackError, ValueError):
        return b""
    is_finite = all(isfinite(array).all() for array in arrays.values())
    return plain if arrays and is_finite else b""
