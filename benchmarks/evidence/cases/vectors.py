"""Encoders of texts whose vectors are right on a device, or have a fault.

The folder of the tests, as it is and with its weights shuffled, by several poolings. Weights are
floats, or have 8 bits. Inputs have a fixed length, so that a mask hides padding.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace
from onnxruntime.quantization import QuantType, quantize_dynamic

from benchmarks.evidence.cases.caches import shuffle
from benchmarks.evidence.constants import ROOT
from benchmarks.evidence.known import Case
from benchmarks.task_kinds.kind import Half
from benchmarks.tasks.task import Feeds, Run
from edgepack.agent.generation.probing import least_cosine
from edgepack.agent.generation.vectors import TextVectors, compare_texts
from edgepack.agent.runtime.opening import open_model_file
from edgepack.bundle.generation import GoldenText
from edgepack.bundle.manifest import GoldenTolerance
from edgepack.packager.gates.tolerances import Seen, derive_tolerances
from edgepack.packager.progress import silent
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel
from edgepack.tasks.plain_error import measure_errors

QUESTION = "Does an encoder give the vectors of the build's golden texts?"

_FOLDER = ROOT / "tests" / "huggingface" / "encoders" / "bert"
_POOLINGS = ("mean", "cls", "max", "lasttoken")
_SHUFFLES = 4
_LENGTH = 24
_GOLDEN = 8
_SAMPLES = 24


def cases(work: Path) -> Iterator[Case]:
    """Yield the cases.

    Args:
        work: Folder for the models.
    """
    for number in range(_SHUFFLES):
        half: Half = "independent" if number else "developed"
        folder = Path(shutil.copytree(_FOLDER, Path(tempfile.mkdtemp(dir=work)) / "bert"))
        path = folder / "model.onnx"
        model = onnx.load(path)
        shuffle(model, number)
        onnx.save(model, path)
        other = folder / "other.onnx"
        shuffle(model, 99)
        onnx.save(model, other)
        shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, _LENGTH))
        source = open_source(path, shapes, {}, folder, silent)
        samples = list(_samples())
        for words, quantize in _FORMATS.items():
            made = path if quantize is None else folder / f"{words}.onnx"
            if quantize is not None:
                quantize(path, made)
            run = open_model_file(made, threads=1).run
            for pooling in _POOLINGS:
                case = partial(_Encoder(source, path, run, samples, pooling).is_right)
                title = f"bert {number}, {words}, {pooling}"
                yield Case(title, half, True, case)
                for fault, change in _FAULTS.items():
                    broken = change(open_model_file(other, threads=1).run, run)
                    yield Case(f"{title}, {fault}", half, False, partial(case, broken))
                wrong = _POOLINGS[(_POOLINGS.index(pooling) + 1) % len(_POOLINGS)]
                yield Case(f"{title}, pooled by {wrong}", half, False, partial(case, pooling=wrong))


class _Encoder:
    """Golden texts of a float model, and the tolerance of a variant.

    Args:
        source: The float model.
        path: Its file.
        run: The variant.
        samples: Tokens of texts.
        pooling: The right pooling.
    """

    def __init__(
        self, source: SourceModel, path: Path, run: Run, samples: Sequence[Feeds], pooling: str
    ) -> None:
        encoder = source.encoder
        if encoder is None:
            raise ValueError("the folder has no encoder")
        self._inputs, self._run = source.inputs, run
        self._tokenizer = encoder.tokenizer.read_bytes()
        self._described = replace(encoder.described, pooling=pooling)
        floats = open_model_file(path, threads=1).run
        expected, got = ([one(feeds) for feeds in samples] for one in (floats, run))
        errors = measure_errors(expected, got, [self._described.output])
        seen = Seen(
            errors=tuple(errors),
            expected=tuple(expected[:_GOLDEN]),
            got=tuple(got[:_GOLDEN]),
        )
        limits = derive_tolerances([seen], source.description)
        self._limit: GoldenTolerance = limits[self._described.output]
        own = replace(encoder, described=self._described)
        self._golden: Sequence[GoldenText] = own.golden_texts(source.inputs, floats)

    def is_right(self, run: Run | None = None, pooling: str = "") -> bool:
        """Compare vectors as a probe does.

        Args:
            run: Runs the model on the device; the variant by default.
            pooling: Pooling of the device; the right one by default.
        """
        described = replace(self._described, pooling=pooling or self._described.pooling)
        vectors = TextVectors(described, self._inputs, self._tokenizer)
        least = least_cosine(self._limit)
        return compare_texts(vectors, self._golden, run or self._run, least=least)[0]


def _samples() -> Iterator[Feeds]:
    rng = np.random.default_rng(2)
    for _ in range(_SAMPLES):
        count = int(rng.integers(4, _LENGTH))
        ids = np.zeros((1, _LENGTH), np.int64)
        ids[0, :count] = rng.integers(5, 60, count)
        mask = (np.arange(_LENGTH) < count).astype(np.int64)[None]
        yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0}


def _quantize(path: Path, made: Path, *, per_channel: bool) -> None:
    quantize_dynamic(path, made, weight_type=QuantType.QInt8, per_channel=per_channel)


_FORMATS: Mapping[str, Callable[[Path, Path], None] | None] = {
    "floats": None,
    "8 bits": partial(_quantize, per_channel=False),
    "8 bits per channel": partial(_quantize, per_channel=True),
}
_FAULTS: Mapping[str, Callable[[Run, Run], Run]] = {
    "another model": lambda other, _: other,
    "no mask": lambda _, run: (
        lambda feeds: run({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})
    ),
    "tokens in reverse": lambda _, run: (
        lambda feeds: run({**feeds, "input_ids": feeds["input_ids"][:, ::-1]})
    ),
}
"""Of a device, by another model and the variant."""
