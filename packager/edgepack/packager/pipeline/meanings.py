"""What outputs are beside boxes and texts: maps, pictures and sound, told by the float model."""

from collections.abc import Mapping, Sequence

from edgepack.packager.metrics.told_meanings import may_be_told, tell_meanings
from edgepack.packager.pipeline.findings import Findings
from edgepack.packager.source.model import SourceModel
from edgepack.packager.tensors.meanings import Meaning
from edgepack.packager.tensors.sequence import Feeds
from edgepack.packager.wording import toml_key
from edgepack.tasks.arrays import Outputs


def untold_outputs(source: SourceModel) -> tuple[str, ...]:
    """Outputs of which nothing is known and that may be a map or a sound."""
    known = (*source.meanings, *(source.head.outputs if source.head else ()))
    inputs = [spec.shape for spec in source.inputs]
    return tuple(
        spec.name
        for spec in source.outputs
        if spec.name not in known and may_be_told(spec.shape, inputs)
    )


def find_meanings(
    names: Sequence[str], feeds: Sequence[Feeds], expected: Sequence[Outputs]
) -> Findings:
    """What the float model's values tell of outputs, and what is asked for.

    Args:
        names: Outputs of which nothing is known.
        feeds, expected: A few of the samples, and what the float model gives.
    """
    told = tell_meanings(names, feeds, expected)
    notes = [
        f"Output '{name}' is {_WORDS[meaning]}, told by its size and values. Where it is something "
        f"else, [outputs.{toml_key(name)}] in edgepack.toml says so."
        for name, meaning in told.meanings.items()
    ]
    notes += [_ask(name, "a map of the picture", _OF_MAPS) for name in told.maps]
    notes += [_ask(name, "a sound", _OF_SOUNDS) for name in told.sounds]
    return Findings(meanings=told.meanings, notes=tuple(notes))


def _ask(name: str, what: str, kinds: str) -> str:
    return (
        f"Output '{name}' looks like {what}, and nothing tells of which kind: judged is how much "
        "of its values' variance is kept, which says little of what it is used for. "
        f"[outputs.{toml_key(name)}] with kind = {kinds} in edgepack.toml if it is that."
    )


_OF_MAPS = "'segmentation' (classes or a mask), 'depth' or 'image'"
_OF_SOUNDS = "'audio'"

_WORDS: Mapping[Meaning, str] = {
    Meaning.SEGMENTATION: "a map of classes, judged by the mean IoU with the float model's own",
    Meaning.IMAGE: "a picture, judged by the PSNR to the float model's own",
    Meaning.AUDIO: "a sound, judged by the SI-SDR to the float model's own",
}
