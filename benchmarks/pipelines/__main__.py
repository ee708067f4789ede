"""Measures pipelines: `python -m benchmarks.pipelines --output FOLDER`.

1. RapidOCR reads drawn pages.
2. PP-OCR is built as a pipeline: floats, floats of fixed size, and two ways for Qualcomm's NPU.
3. Each variant reads the pages on the CPU, and a few of them on Qualcomm's simulator.
4. A model of speech writes texts with one beam and with five.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from benchmarks.packager.environments import PEERS, prepare
from benchmarks.pipelines.beams import Beams, measure
from benchmarks.pipelines.page import Measured, Row, page
from benchmarks.pipelines.pages import SIDE, draw_pages, write_pipeline
from benchmarks.tasks.task import Array
from edgepack.agent.runtime.opening import open_model_file, open_session
from edgepack.agent.runtime.pipelines import open_stages
from edgepack.agent.runtime.sessions import Session
from edgepack.bundle.manifest import Variant, decode_manifest
from edgepack.durable import write_file

_CALIBRATION, _READ = 18, 16
_ROUNDS = 3
_BEAMS = (1, 5)
Texts = list[list[str]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulated", type=int, default=3, help="pages on the simulator")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        pages = draw_pages(work / "pages", _READ, seed=7)
        expected, rapidocr_ms = _read_by_rapidocr(pages)
        bundle = _build(work)
        pixels = [np.asarray(Image.open(path)) for path in sorted(pages.glob("*.png"))]
        rows = []
        for variant in decode_manifest((bundle / "manifest.json").read_bytes()).variants:
            rows.append(_measure(bundle, variant, pixels, expected, given.simulated))
            print(rows[-1], file=sys.stderr, flush=True)
        beams: tuple[Beams, ...] = tuple(measure(count, work) for count in _BEAMS)
    measured = Measured(
        pages=_READ,
        lines=sum(map(len, expected)),
        simulated_lines=sum(map(len, expected[: given.simulated])),
        rapidocr_ms=rapidocr_ms,
        rows=tuple(rows),
        beams=beams,
    )
    given.output.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(measured), indent=1)
    write_file(given.output / "pipelines.json", content)
    write_file(given.output / "README.md", page(measured).encode())
    return 0


def _read_by_rapidocr(pages: Path) -> tuple[Texts, float]:
    python = prepare("rapidocr").python
    script = PEERS / "rapidocr" / "read_pages.py"
    done = subprocess.run(
        [python, script, pages, str(SIDE)], capture_output=True, text=True, check=True
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["texts"], answer["page_ms"]


def _build(work: Path) -> Path:
    bundle, key = work / "reader-1.0.0", work / "release.key"
    pipeline = write_pipeline(work / "pipeline")
    samples = draw_pages(work / "samples", _CALIBRATION, seed=5)
    edgepack = (sys.executable, "-m", "edgepack.cli")
    subprocess.run([*edgepack, "keys", "generate", "-o", key.with_suffix("")], check=True)
    options = ("--profile", "fp32", "--calibration", samples, "--key", key, "-o", bundle)
    subprocess.run([*edgepack, "build", pipeline, *options], check=True)
    return bundle


def _measure(
    bundle: Path, variant: Variant, pixels: Sequence[Array], expected: Texts, simulated: int
) -> Row:
    """Read pages by a variant, on the CPU and, if it is for an NPU, on the simulator."""

    def open_part(part: Variant) -> Session:
        return open_model_file(bundle / part.folder / part.model_file, threads=1)

    session = open_stages(variant, open_part)
    read = [_read(session, one) for one in pixels]
    began = time.process_time()
    for _ in range(_ROUNDS):
        for one in pixels:
            _read(session, one)
    page_ms = (time.process_time() - began) * 1000 / (_ROUNDS * len(pixels))
    session.close()
    on_simulator = None
    if any(part.provider != "CPUExecutionProvider" for part in variant.parts):
        session = open_session(bundle, variant, threads=1)
        on_simulator = _count([_read(session, one) for one in pixels[:simulated]], expected)
        session.close()
    return Row(
        variant=variant.name,
        equal=_count(read, expected),
        equal_without_spaces=_count(_without_spaces(read), _without_spaces(expected)),
        page_ms=page_ms,
        on_simulator=on_simulator,
    )


def _read(session: Session, pixels: Array) -> list[str]:
    texts = session.run({"picture": pixels[None]})["texts"]
    return ["".join(map(chr, row[row > 0])) for row in texts]


def _without_spaces(texts: Texts) -> Texts:
    return [["".join(line.split()) for line in page_texts] for page_texts in texts]


def _count(read: Texts, expected: Texts) -> int:
    """Return the number of lines that are expected and read, in their order."""
    pairs = zip(read, expected, strict=False)
    return sum(
        block.size
        for one, other in pairs
        for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    )


if __name__ == "__main__":
    sys.exit(main())
