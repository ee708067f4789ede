"""Work of beams in a model of speech: the folder of the tests, with one beam and with five."""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.tasks.places import ROOT
from benchmarks.tasks.task import Array
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import read_pipeline

_SPEECH = ROOT / "tests" / "huggingface" / "speech"
_SOUNDS, _ROUNDS = 6, 5


class Beams(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a text, of `sounds` sounds.

    Attributes:
        beams: Followed texts.
        rows: Rows that the decoders computed at most, for a token of the text.
        ms: Processor time for a token of the text.
        tokens: Tokens of all texts.
    """

    beams: int
    rows: float
    ms: float
    tokens: int


def measure(beams: int, work: Path) -> Beams:
    """Write the texts of drawn features.

    Args:
        beams: Followed texts.
        work: Folder for the model.
    """
    folder = Path(shutil.copytree(_SPEECH, work / f"beams-{beams}"))
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"num_beams": beams}))
    source = read_pipeline(folder)
    session = FloatPipeline(source).session
    (given,) = source.wiring.inputs
    shape = tuple(int(size) for size in given.shape)
    rng = np.random.default_rng(3)
    sounds = [rng.normal(0, 1, shape).astype(np.float32) for _ in range(_SOUNDS)]
    rows = 0

    def count(name: str, _: Mapping[str, Array]) -> None:
        nonlocal rows
        if name != "encoder":
            rows += beams

    texts = [session.run({given.name: sound}, count)["tokens"] for sound in sounds]
    tokens = sum(text.size for text in texts)
    began = time.process_time()
    for _ in range(_ROUNDS):
        for sound in sounds:
            session.run({given.name: sound})
    ms = (time.process_time() - began) * 1000 / (_ROUNDS * tokens)
    return Beams(beams=beams, rows=rows / tokens, ms=ms, tokens=tokens)
