"""Proof of the preparation of pictures and sounds on this device, by a bundle's golden files.

1. Each golden picture or sound is prepared here, and compared bit by bit with the golden sample.
2. If bits differ (another Pillow, another JPEG decoder, another processor), the model runs on what
   was prepared here, and its answers must hold the limits of the golden samples.

A device without Pillow proves nothing, and applications there feed arrays: no reason to reject.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

import numpy as np

from edgepack.agent.runtime.sessions import Tensor
from edgepack.bundle.golden import Golden, compare_outputs
from edgepack.bundle.golden_pictures import GoldenPicture, golden_pictures
from edgepack.bundle.manifest import MANIFEST_FILE, Manifest, Variant
from edgepack.errors import PictureError, SoundError
from edgepack.pictures.prepare import prepare_picture
from edgepack.sound.features import prepare_start
from edgepack.sound.waves import open_sound
from edgepack.tasks.inputs import PictureInput, SoundInput
from edgepack.text import counted
from edgepack.wire.reports import Preparation


class RunningSession(Protocol):
    """Part of a session that a proof needs."""

    def run_timed(self, feeds: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Run inputs and measure the time; see `Session.run_timed`."""


def prove_preparation(
    folder: Path,
    manifest: Manifest,
    variant: Variant,
    golden: Golden,
    session: RunningSession,
    *,
    least: int,
    limit_s: float,
) -> Preparation | None:
    """Prepare the golden pictures or sounds here, and compare with the golden samples.

    Args:
        folder: Plain files of the bundle.
        manifest: The bundle's.
        variant: Its limits hold for the answers.
        golden: The golden samples.
        session: Runs the variant, if bits differ.
        least: Samples that run at least, if bits differ.
        limit_s: Further samples are begun for this long, seconds.

    Returns:
        The result; None for a bundle without golden pictures or sounds.

    Raises:
        BundleError: The golden files are malformed.
        DeviceError: The provider failed.
    """
    meaning = manifest.facts.description
    described = meaning.picture or meaning.sound
    pictures = golden_pictures(manifest.facts.files, found_in=MANIFEST_FILE)
    if described is None or not pictures:
        return None
    try:
        prepared = dict(_prepare(folder, pictures, described, golden))
    except (PictureError, SoundError) as error:
        return Preparation(right=None, because=f"not checked: {error.problem}")
    if not prepared:
        return Preparation(right=None, because="not checked: no golden file fits a sample")
    kind = "picture" if described is meaning.picture else "sound"
    words = counted(len(pictures), f"golden {kind}")
    other = [sample for sample, own in prepared.items() if own is not None]
    if not other:
        return Preparation(
            right=True, because=f"{words}: prepared here with the same bits as in the build"
        )
    got: list[dict[str, Tensor]] = []
    spent_ms = 0.0
    for number, feeds in enumerate(golden.inputs):
        if len(got) >= max(least, min(other) + 1) and spent_ms > limit_s * 1000:
            break
        own = prepared.get(number)
        given = feeds if own is None else {**feeds, described.name: own}
        outputs, taken_ms = session.run_timed(given)
        got.append(outputs)
        spent_ms += taken_ms
    comparison = compare_outputs(
        golden.outputs[: len(got)], got, variant.facts.tolerances, variant.facts.agreements
    )
    differ = f"{words}: {len(other)} of {len(prepared)} samples prepared here differ in bits"
    how = "whose answers are right" if comparison.right else "and the answers are wrong"
    return Preparation(right=comparison.right, because=f"{differ}, {how}: {comparison.because}")


def _prepare(
    folder: Path,
    pictures: Sequence[GoldenPicture],
    described: PictureInput | SoundInput,
    golden: Golden,
) -> Iterator[tuple[int, Tensor | None]]:
    """Yield the number of each sample, with its input as prepared here, None for the same bits.

    Raises:
        PictureError: Pillow is not installed, or cannot read a picture.
        SoundError: A sound cannot be read.
    """
    for sample, rows in groupby(pictures, key=lambda one: one.sample):
        feeds = golden.inputs[sample] if sample < len(golden.inputs) else {}
        expected = feeds.get(described.name)
        paths = [folder / one.path for one in rows]
        if expected is None or len(paths) != len(expected):
            continue
        if isinstance(described, SoundInput):
            own = prepare_start(open_sound(paths[0]), described).astype(expected.dtype)
        else:
            own = np.concatenate([prepare_picture(path, described).tensor for path in paths])
        is_same = own.dtype == expected.dtype and np.array_equal(own, expected)
        yield sample, None if is_same else own
