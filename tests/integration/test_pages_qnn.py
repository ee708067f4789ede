"""PP-OCR's pipeline with all stages on Qualcomm's simulator: pages are read as `rapidocr` reads
them. No chip was seen.

The pages are small, since the simulator takes seconds for each graph. `rapidocr-onnxruntime` 1.4.4
read them with `det_limit_side_len=64`, OpenCV 5.0 and ONNX Runtime 1.31.1.
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
_LINES = (("keep dry", 28), ("check valve 7", 24), ("high voltage", 25), ("pressure 48.50", 21))
"""A page each; the second one is held out."""
_VARIANT = """
[[variant]]
name = "npu"
stages = { detect = "npu.toml" }
others = "qnn-htp"
"""
_READ_BY_RAPIDOCR = "check valve 7"
"""Of the second page."""


def _draw(number: int) -> Image.Image:
    """Draw a line on 192 x 64 pixels."""
    ink, paper = ((240,) * 3, (30, 34, 40)) if number % 2 else ((20,) * 3, (250, 248, 240))
    page = Image.new("RGB", (192, 64), paper)
    text, size = _LINES[number]
    ImageDraw.Draw(page).text((12, 18), text, font=ImageFont.load_default(size), fill=ink)
    return page


@pytest.mark.timeout(1800)
def test_all_stages_on_the_simulator_read_pages_as_rapidocr(key: Path, tmp_path: Path) -> None:
    spec = util.find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for graph in Path(spec.submodule_search_locations[0], "models").glob("*.onnx"):
        shutil.copy(graph, tmp_path)
    text = (_EXAMPLE / "pipeline.toml").read_text()
    text = text.replace('output = "page"\n', 'output = "page"\nleast_side = 64\n')
    text = text.replace('task = "pages"\n', 'task = "pages"\nkeep = 0.5\n')
    text = text.replace("736, 960", "64, 192").replace("48, 640", "48, 320")
    (tmp_path / "pipeline.toml").write_text(text + _VARIANT)
    shutil.copy(_EXAMPLE / "npu.toml", tmp_path)
    samples = tmp_path / "samples"
    samples.mkdir()
    for number in range(len(_LINES)):
        _draw(number).save(samples / f"{number}.png")
    bundle = tmp_path / "reader-1.0.0"
    edgepack("build", tmp_path, "--calibration", samples, "--key", key, "-o", bundle)
    (variant,) = decode_manifest((bundle / "manifest.json").read_bytes()).variants
    assert [part.provider for part in variant.parts] == ["QNNExecutionProvider"] * 3
    assert variant.facts.accuracy.value == 1.0, "the end decides: stages' maps are too small for it"
    install(bundle, key, tmp_path / "state", "[providers]\nallow_simulator = true\n")
    with open_model("reader", tmp_path / "state", threads=1) as model:
        answer = model.run_image(np.asarray(_draw(1)))
    assert [line.text for line in answer.lines] == [_READ_BY_RAPIDOCR]
