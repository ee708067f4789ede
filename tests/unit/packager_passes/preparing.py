"""A variant of a model, prepared from samples that are divided already."""

from pathlib import Path
from typing import Any

from edgepack.packager.bundling.prepared_variant import PreparedVariant
from edgepack.packager.pipeline.prepare_variant import prepare_variant
from edgepack.packager.profiles.schema import Profile
from edgepack.packager.progress import silent
from edgepack.packager.source.model import load_source
from edgepack.packager.source.reference import FloatSource
from edgepack.packager.tensors.sequence import SampleSplit


def prepare(
    model: Path, profile: Profile, split: SampleSplit, folder: Path, **more: Any
) -> PreparedVariant:
    """What `prepare_variant` makes of a file; held-out samples are tried on its provider.

    Args:
        model: The model file.
        profile: The profile.
        split: Samples.
        folder: For everything that is written.
        more: Other arguments of `prepare_variant`; by default nothing degraded is allowed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = load_source(model)
    return prepare_variant(
        source,
        profile,
        split,
        tried=split.held_out,
        float_source=FloatSource(source, folder / "float-source.onnx"),
        work_dir=folder,
        progress=silent,
        **{"allow_degraded": False, **more},
    )
