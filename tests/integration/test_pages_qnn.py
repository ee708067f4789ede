"""PP-OCR's pipeline with all stages on Qualcomm's simulator: pages are read as `rapidocr` reads
them. No chip was seen.

The pages are small, since the simulator takes seconds for each graph. `rapidocr-onnxruntime` 1.4.4
read them with `det_limit_side_len=96`, OpenCV 5.0 and ONNX Runtime 1.31.1.
"""

import shutil
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from edgepack.agent import open_model
from edgepack.bundle.manifest import decode_manifest
from tests.integration.picture_builds import edgepack, install

_EXAMPLE = Path(__file__).parents[2] / "examples" / "pages"
_LINES = (
    ("net weight 12 kg", 22),
    ("Made in Germany", 26),
    ("check valve 7", 24),
    ("total amount 2026", 20),
    ("keep dry", 28),
    ("high voltage", 25),
    ("pressure 48.50", 21),
    ("Serial AB-1234", 23),
)
_PAGES = 4
"""The second one is held out."""
_VARIANT = """
[[variant]]
name = "npu"
stages = { detect = "npu.toml" }
others = "qnn-htp"
"""
_READ_BY_RAPIDOCR = ("check valve 7", "total amount 2026")
"""Of the second page."""


def _draw(number: int) -> Image.Image:
    """Draw two lines on 256 x 96 pixels."""
    ink, paper = ((240,) * 3, (30, 34, 40)) if number % 2 else ((20,) * 3, (250, 248, 240))
    page = Image.new("RGB", (256, 96), paper)
    canvas = ImageDraw.Draw(page)
    for row in range(2):
        text, size = _LINES[(2 * number + row) % len(_LINES)]
        place = (12 + 6 * row, 8 + 44 * row)
        canvas.text(place, text, font=ImageFont.load_default(size), fill=ink)
    return page


@pytest.mark.timeout(1800)
def test_all_stages_on_the_simulator_read_pages_as_rapidocr(key: Path, tmp_path: Path) -> None:
    spec = util.find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for graph in Path(spec.submodule_search_locations[0], "models").glob("*.onnx"):
        shutil.copy(graph, tmp_path)
    text = (_EXAMPLE / "pipeline.toml").read_text()
    text = text.replace('output = "page"\n', 'output = "page"\nleast_side = 96\n')
    text = text.replace('task = "pages"\n', 'task = "pages"\nkeep = 0.9\n')
    (tmp_path / "pipeline.toml").write_text(text.replace("736, 960", "96, 256") + _VARIANT)
    shutil.copy(_EXAMPLE / "npu.toml", tmp_path)
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(_PAGES):
        _draw(number).save(samples / f"{number}.png")
    bundle = tmp_path / "reader-1.0.0"
    edgepack("build", tmp_path, "--calibration", samples, "--key", key, "-o", bundle)
    (variant,) = decode_manifest((bundle / "manifest.json").read_bytes()).variants
    assert [part.provider for part in variant.parts] == ["QNNExecutionProvider"] * 3
    install(bundle, key, tmp_path / "state", "[providers]\nallow_simulator = true\n")
    with open_model("reader", tmp_path / "state", threads=1) as model:
        answer = model.run_image(np.asarray(_draw(1)))
    assert tuple(line.text for line in answer.lines) == _READ_BY_RAPIDOCR
