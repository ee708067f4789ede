"""Opening a release in a slot, for all serving processes."""

import os
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np

from edgepack.agent.runtime.opening import open_session
from edgepack.agent.runtime.plain_files import KEY_VARIABLE, plain_files
from edgepack.agent.runtime.sessions import Session
from edgepack.agent.state.decryption_key import read_key_file
from edgepack.agent.state.slots import slot_folder
from edgepack.bundle.chunks import read_bounded
from edgepack.bundle.generation import MAX_ASSET_BYTES, is_asset
from edgepack.bundle.golden import Golden, Tensor, read_golden
from edgepack.bundle.manifest import GOLDEN_FILE, Manifest, Variant
from edgepack.bundle.slot import verify_variant
from edgepack.errors import DeviceError

SAMPLE_BYTES = 8_000_000


class OpenedSlot(NamedTuple):
    """A variant of a release, ready to run.

    Attributes:
        session, manifest, variant: Opened session, with manifest and variant.
        finite_outputs: Outputs that were finite for every golden sample of the float model.
        samples: Inputs of the first golden samples, as many as fit into 8 MB, at least one.
        expected: Outputs of the float model on the first golden samples, bounded alike.
        assets: Content of the files for texts, by name; empty for other models.
    """

    session: Session
    manifest: Manifest
    variant: Variant
    finite_outputs: tuple[str, ...]
    samples: tuple[dict[str, Tensor], ...]
    expected: tuple[dict[str, Tensor], ...]
    assets: dict[str, bytes]


def open_slot(state_dir: Path, digest: str, variant: str, *, threads: int) -> OpenedSlot:
    """Open a variant and run the model once, so that the first real inference is fast.

    Args:
        state_dir: The agent's state folder.
        digest: The bundle; its files are read once more before use.
        variant: The variant's name.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        BundleError: The files differ from the installed files.
        DeviceError: The provider is not here, or fails, the disk cannot be read now, the files
            cannot be decrypted, or the bundle is an adapter.
    """
    folder = slot_folder(state_dir, digest)
    try:
        manifest = verify_variant(folder, digest, variant)
        assets = _read_assets(folder, manifest)
    except OSError as error:
        raise DeviceError(
            f"the model's files cannot be read now: {error.strerror}",
            found_in=str(error.filename or folder),
            remedy="check the disk; the files need not be damaged",
        ) from error
    if (adapter := manifest.facts.adapter) is not None:
        name = manifest.facts.name
        raise DeviceError(
            f"'{name}' is an adapter for '{adapter.base}', not a model by itself",
            remedy=f"open_model({adapter.base!r}).generate(…, adapter={name!r})",
        )
    found = manifest.variant(variant)
    key_file = os.environ.get(KEY_VARIABLE) or read_key_file(state_dir)
    with plain_files(folder, found, key_file, manifest) as plain:
        session = open_session(plain, found, threads=threads)
        golden = read_golden(plain / GOLDEN_FILE)
    session.run(golden.inputs[0])
    floats = (one.name for one in session.outputs if one.dtype.startswith("float"))
    finite = tuple(name for name in floats if _is_finite(name, golden))
    samples, expected = (_first(values) for values in (golden.inputs, golden.outputs))
    return OpenedSlot(session, manifest, found, finite, samples, expected, assets)


def _read_assets(folder: Path, manifest: Manifest) -> dict[str, bytes]:
    """Return the files for texts, whose digests were checked."""
    if not manifest.facts.text_files:
        return {}
    files = (entry.path for entry in manifest.facts.files if is_asset(entry.path))
    return {path: read_bounded(folder / path, MAX_ASSET_BYTES) for path in files}


def _first(samples: tuple[dict[str, Tensor], ...]) -> tuple[dict[str, Tensor], ...]:
    """Return the first samples, as many as a process keeps in memory."""
    sizes = (sum(value.nbytes for value in tensors.values()) for tensors in samples)
    count = sum(total <= SAMPLE_BYTES for total in accumulate(sizes))
    return samples[: max(1, count)]


def _is_finite(name: str, golden: Golden) -> bool:
    expected = [sample[name] for sample in golden.outputs if name in sample]
    return bool(expected) and all(bool(np.isfinite(one).all()) for one in expected)
