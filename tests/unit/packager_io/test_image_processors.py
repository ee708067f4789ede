"""The preparation that a Hugging Face folder states: known steps are taken, others are a note.

For each class, the prepared values were compared with those of transformers 4.57.6 on the pictures
in `tests/huggingface`: they differ by at most 5e-7, which is rounding.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from edgepack.errors import BuildError
from edgepack.packager.config.image_processors import FILE, read_image_processor
from edgepack.packager.config.inputs import ImageInput
from edgepack.packager.pipeline.open_model import add_folder_facts, wanted_inputs
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.samples.formats import open_files
from edgepack.packager.source.huggingface.folder import open_source
from edgepack.packager.source.model import SourceModel
from edgepack.tasks.level import THRESHOLD

FOLDERS = Path(__file__).parents[2] / "huggingface"


def _read(folder: Path, **stated: Any) -> ImageInput:
    (folder / FILE).write_text(json.dumps(stated))
    found = read_image_processor(folder)
    assert found is not None
    return found


def test_a_folder_without_the_file_states_nothing(tmp_path: Path) -> None:
    assert read_image_processor(tmp_path) is None


def test_steps_are_those_of_the_class(tmp_path: Path) -> None:
    vit = _read(
        tmp_path,
        image_processor_type="ViTImageProcessorFast",
        size={"height": 30, "width": 50},
        resample=3,
        image_mean=[0.1, 0.2, 0.3],
        image_std=[0.4, 0.5, 0.6],
    )
    assert (vit.resize, vit.size, vit.filter) == ("stretch", (30, 50), "bicubic")
    assert (vit.mean, vit.std, vit.scale) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 1 / 255)
    legacy = _read(tmp_path, feature_extractor_type="CLIPFeatureExtractor", size=256)
    assert (legacy.resize, legacy.short_side, legacy.size) == ("short_side", 256, (224, 224))
    square = _read(tmp_path, image_processor_type="DeiTImageProcessor", resample=None)
    assert (square.resize, square.short_side, square.size) == ("stretch", 256, (224, 224))
    small = _read(
        tmp_path, image_processor_type="ConvNextImageProcessor", size={"shortest_edge": 56}
    )
    assert (small.resize, small.short_side, small.size) == ("short_side", 64, (56, 56))
    large = _read(tmp_path, image_processor_type="ConvNextImageProcessor")
    assert (large.resize, large.size) == ("stretch", (384, 384))
    raw = _read(
        tmp_path,
        image_processor_type="BitImageProcessor",
        do_rescale=False,
        do_normalize=False,
        resample=None,
    )
    assert (raw.scale, raw.mean, raw.std, raw.filter) == (1.0, (0.0,), (1.0,), "bicubic")


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"image_processor_type": "DetrImageProcessor"}, "class 'Detr' is not one of ViTImage"),
        ({}, "class '' is not one of"),
        ({"image_processor_type": "ViTImageProcessor", "do_resize": False}, "do_resize is false"),
        (
            {
                "image_processor_type": "BeitImageProcessor",
                "size": {"height": 256, "width": 300},
            },
            "is no square",
        ),
        (
            {"image_processor_type": "CLIPImageProcessor", "size": 100},
            "its shorter side is below the size",
        ),
        ({"image_processor_type": "ViTImageProcessor", "resample": 17}, "out of range"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"a": 1}}, "'height'"),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": ["x"]}, "Expected `float`"),
        ({"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": "x"}}, "x"),
        ([], "not known"),
    ],
)
def test_other_steps_and_values_are_refused_with_a_remedy(
    stated: object, words: str, tmp_path: Path
) -> None:
    (tmp_path / FILE).write_text(json.dumps(stated))
    with pytest.raises(BuildError) as caught:
        read_image_processor(tmp_path)
    assert words in caught.value.problem
    assert "[inputs.pixel_values] with kind" in (caught.value.remedy or "")


def test_damaged_and_deep_files_are_refused(tmp_path: Path) -> None:
    for content in (b"{", b"\xff", b"[" * 100_000):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(BuildError, match="is not known"):
            read_image_processor(tmp_path)


def _copy(name: str, folder: Path, **changes: Any) -> Path:
    """Copy a recorded folder with changes of its configuration."""
    for path in (FOLDERS / name).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder / "model.onnx"


def _open(model: Path, folder: Path) -> SourceModel:
    return open_source(model, {}, {}, folder / "work", silent)


def test_the_folder_states_task_and_names_of_a_classifier(tmp_path: Path) -> None:
    source = _open(_copy("vit", tmp_path), tmp_path)
    assert source.labels[:2] == ("tench", "goldfish")
    (part,) = source.description.parts
    assert (part.task, part.outputs, part.source) == ("classification", ("logits",), "metadata")
    alike = _copy("vit", tmp_path, id2label={"0": "crane", "1": "crane"})
    assert _open(alike, tmp_path).labels == ("crane", "crane")
    each = _copy("vit", tmp_path, problem_type="multi_label_classification")
    (part,) = _open(each, tmp_path).description.parts
    assert (part.task, part.settings) == ("threshold", {THRESHOLD: 0.0})


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["ViTModel"]},
        {"architectures": "ViTForImageClassification"},
        {"id2label": {"0": "only"}},
        {"id2label": {"0": "a", "2": "b"}},
        {"id2label": {"0": 1, "1": 2}},
        {"model_type": ""},
    ],
)
def test_other_configurations_state_no_task(changes: dict[str, Any], tmp_path: Path) -> None:
    assert _open(_copy("vit", tmp_path, **changes), tmp_path).description.parts == ()


def test_a_declaration_counts_before_the_folder_and_unknown_steps_are_a_note(
    tmp_path: Path,
) -> None:
    source = _open(_copy("vit", tmp_path), tmp_path)
    request = BuildRequest(
        model=tmp_path, output=tmp_path, name="m", version="1", release=1, profiles=(), key=""
    )
    told, noted = add_folder_facts(request, source)
    assert isinstance(told.declarations["pixel_values"], ImageInput)
    assert noted.notes[-1].startswith("Pictures are prepared as preprocessor_config.json of")
    assert add_folder_facts(told, source) == (told, source)
    (tmp_path / FILE).write_text('{"image_processor_type": "Odd"}')
    unchanged, noted = add_folder_facts(request, source)
    assert unchanged == request
    assert "to use pictures, declare it: [inputs.pixel_values]" in noted.notes[-1]
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(BuildError, match=r"is not declared: .* sees; .* class 'Odd' is not one of"):
        open_files(tmp_path, wanted_inputs(noted, unchanged))
