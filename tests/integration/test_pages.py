"""PP-OCR's detector, orientation classifier and recognizer as one bundle, from the build to pages
that an application reads.
"""

import json
import re
import shutil
from importlib import util
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from PIL import Image

from edgepack.agent import open_model
from edgepack.agent.runtime.opening import open_session
from edgepack.agent.telemetry.drift import DriftWatch
from edgepack.agent.telemetry.sketches import SketchRecorder
from edgepack.bundle.manifest import decode_manifest
from tests.integration.pages import READ_BY_RAPIDOCR, draw_page, save_pages
from tests.integration.picture_builds import edgepack, install
from tests.simulators.model_server import ModelServer
from tests.unit.pictures.drawn import encoded

_EXAMPLE = Path(__file__).parents[2] / "examples" / "pages" / "pipeline.toml"
_SMALL = 'fit = "page"\nleast_side = 224\n'
_OF_THE_BUILD = (0, 3, 4, 7, 8)
"""Pages of both colours, one upside down and one slanted; devices read all nine."""
_VARIANTS = """
[[variant]]
name = "npu-turns"
stages = { turn = "qnn-htp" }

[[variant]]
name = "fixed"
stages = { detect = "fixed.toml", read = "fixed.toml" }
"""
_FIXED = """
[profile]
name = "fixed"
extends = "fp32"
[limits]
static_shapes = true
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """Return the bundle of the pipeline: all stages float, the classifier on an NPU, and the
    detector and the recognizer at fixed sizes.
    """
    folder = tmp_path_factory.mktemp("pages")
    spec = util.find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    for model in Path(spec.submodule_search_locations[0], "models").glob("*.onnx"):
        shutil.copy(model, folder)
    text = _EXAMPLE.read_text().replace('output = "page"\n', f'output = "page"\n{_SMALL}')
    (folder / "fixed.toml").write_text(_FIXED)
    (folder / "pipeline.toml").write_text(text.replace("736, 960", "224, 448") + _VARIANTS)
    samples = save_pages(folder / "samples", _OF_THE_BUILD)
    edgepack(
        *("build", folder, "--profile", "fp32", "--calibration", samples),
        *("--key", key, "-o", folder / "reader-1.0.0"),
    )
    return folder / "reader-1.0.0"


@pytest.fixture(scope="module")
def device(bundle: Path, key: Path) -> Path:
    """Return the state folder of a device that runs the pipeline."""
    state = bundle.parent / "state"
    install(bundle, key, state)
    return state


def test_bundle_holds_each_stage_once_and_its_variants_share_stages(bundle: Path) -> None:
    manifest = decode_manifest((bundle / "manifest.json").read_bytes())
    stages = {variant.name: [part.name for part in variant.parts] for variant in manifest.variants}
    assert stages == {
        "npu-turns": ["fp32", "qnn-htp", "fp32"],
        "fixed": ["fixed", "fp32", "fixed"],
        "fp32": ["fp32"] * 3,
    }
    folders = sorted(path.name for path in (bundle / "model").iterdir())
    own = ["detect.fixed", "read.fixed", "turn.qnn-htp"]
    assert folders == sorted([*own, "detect.fp32", "read.fp32", "turn.fp32"])
    accuracy = {variant.name: variant.facts.accuracy for variant in manifest.variants}
    assert [one.value for one in accuracy.values()] == [1.0, 1.0, 1.0]
    assert accuracy["npu-turns"].provider == "QNNExecutionProvider"
    package = json.loads((bundle / "manifest.json").read_bytes())
    assert sorted(package["components"]) == ["detect", "read", "turn"]


def test_drift_is_measured_by_lines_their_length_and_their_scores(bundle: Path) -> None:
    facts = decode_manifest((bundle / "manifest.json").read_bytes()).facts
    recorder = SketchRecorder()
    recorder.expect(facts.reference, facts.description)
    (length,) = (one for one in facts.reference if one.name == "length of a line")
    boxes = np.tile(np.array([[0, 0], [9, 0], [9, 5], [0, 5]], np.float32), (2, 1, 1))
    texts, scores = np.full((2, 90), ord("x"), np.int32), np.ones(2, np.float32)
    for _ in range(60):
        recorder.next_at = 0.0
        recorder.offer({}, {"boxes": boxes, "texts": texts, "scores": scores})
        recorder.snapshot()
    drift = DriftWatch().add(("d", "v", "p"), recorder.snapshot())
    assert 5 < length.mean < 30
    assert drift is not None
    assert drift.features[0].words == "length of a line"


def test_pages_are_read_as_rapidocr_reads_them(device: Path) -> None:
    with open_model("reader", device, threads=1) as model:
        answers = [model.run_image(draw_page(page)) for page in range(len(READ_BY_RAPIDOCR))]
        assert model.read(draw_page(0)) == answers[0].text
    found = [tuple(line.text for line in answer.lines) for answer in answers]
    assert found == list(READ_BY_RAPIDOCR)
    assert answers[1].text == "\n".join(READ_BY_RAPIDOCR[1])
    left, right = answers[1].lines[0].corners[0], answers[1].lines[0].corners[1]
    assert left == pytest.approx((14.0, 14.0), abs=8)
    assert right[0] > 200


def test_graphs_of_fixed_size_read_pages_as_rapidocr_reads_them(bundle: Path) -> None:
    """Lines of other widths, and pages smaller than the graph: a mask tells padding."""
    manifest = decode_manifest((bundle / "manifest.json").read_bytes())
    variant = next(one for one in manifest.variants if one.name == "fixed")
    detect, _, read = (bundle / part.folder / part.model_file for part in variant.parts)
    for model, shape in ((detect, [1, 3, 224, 448]), (read, [1, 3, 48, 640])):
        first, mask = onnx.load(model, load_external_data=False).graph.input
        assert [size.dim_value for size in first.type.tensor_type.shape.dim] == shape
        assert mask.name == "x_mask"
    session = open_session(bundle, variant, threads=1)
    found = []
    for page in range(len(READ_BY_RAPIDOCR)):
        texts = session.run({"picture": draw_page(page)[None]})["texts"]
        found.append(tuple("".join(map(chr, row[row > 0])) for row in texts))
    session.close()
    assert found == list(READ_BY_RAPIDOCR)


def test_command_prints_a_line_with_score_and_box_per_text(device: Path) -> None:
    page = device.parent / "page.png"
    page.write_bytes(encoded(Image.fromarray(draw_page(1))))
    words = ("infer", "reader", page, "--state-dir", device)
    shown = edgepack(*words, module="edgepack.agent.cli").splitlines()[1:]
    assert len(shown) == len(READ_BY_RAPIDOCR[1])
    for line, text in zip(shown, READ_BY_RAPIDOCR[1], strict=True):
        assert re.fullmatch(rf"{re.escape(text)}  [01]\.\d{{3}}  \d+, \d+ to \d+, \d+", line), line
    told = json.loads(edgepack(*words, "--json", module="edgepack.agent.cli"))
    assert [line["text"] for line in told["lines"]] == list(READ_BY_RAPIDOCR[1])


def test_model_server_reads_a_page(device: Path) -> None:
    with open_model("reader", device, threads=1) as model:
        answer = model.run_image(draw_page(4))
    server = ModelServer(device.parent)
    server.start()
    page = encoded(Image.fromarray(draw_page(4)))
    told = server.ask("POST", "/v2/models/reader/image", page).value
    empty = encoded(Image.fromarray(np.full((200, 400, 3), 255, np.uint8)))
    of_nothing = server.ask("POST", "/v2/models/reader/image", empty).value
    described = server.ask("GET", "/v2/models/reader").value
    assert server.stop() == 0, server.said()
    assert told["text"] == answer.text == "\n".join(READ_BY_RAPIDOCR[4])
    assert told["lines"] == json.loads(msgspec.json.encode(answer.lines))
    assert (of_nothing["text"], of_nothing["lines"]) == ("", [])
    assert (told["width"], told["height"]) == (400, 200)
    assert [one["name"] for one in described["outputs"]] == ["boxes", "texts", "scores"]
    assert described["inputs"][0]["shape"] == [1, -1, -1, 3]
