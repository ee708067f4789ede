"""Models from frameworks build for every target tested here, without manual work.

A Paddle export comes from a package that is installed for the tests; a BERT
and a YOLOv8 head are made here from the operators that their exports have.
"""

from importlib import util
from pathlib import Path

import onnx
import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.packager.config.inputs import InputDeclaration, TokenInput
from edgepack.packager.pipeline.build import build_bundle as build
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.progress import silent
from edgepack.packager.reports.report import VariantReport
from tests.unit.packager_io.exports import tiny_bert, tiny_detector

PADDLE_CLASSIFIER = (
    "rapidocr_onnxruntime",
    "models",
    "ch_ppocr_mobile_v2.0_cls_infer.onnx",
)
"""Tells text that is upside down, images float32 (1, 3, 48, 192) in `x`, as Paddle exports it."""

_PROFILES = ("cpu", "qnn-htp", "qnn-htp-a8w8", "vitisai-xint8")
_LOOSE = """
[gates.accuracy.any]
keep = 0.01
"""
"""Random weights and random samples: that a model is built is looked at, not how well."""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a private key's file."""
    folder = tmp_path_factory.mktemp("key")
    write_key_pair(generate_key(), folder / "release")
    return folder / "release.key"


def packaged(package: str, *parts: str) -> Path:
    """Return a file of an installed package; skip the test by name without the file."""
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def build_loosely(
    folder: Path,
    key: Path,
    model: Path,
    declarations: dict[str, InputDeclaration] | None = None,
    names: tuple[str, ...] = _PROFILES,
    **shapes: tuple[int, ...],
) -> dict[str, VariantReport]:
    """Build a model with random samples, for profiles with loose budgets."""
    profiles = []
    for name in names:
        path = folder / f"{name}.toml"
        path.write_text(f'[profile]\nname = "my-{name}"\nextends = "{name}"\n{_LOOSE}')
        profiles.append(str(path))
    request = BuildRequest(
        model=model,
        output=folder / "model-1.0.0",
        name="model",
        version="1.0.0",
        release=1,
        profiles=tuple(profiles),
        key=key,
        calibration="random:16",
        shapes=shapes,
        declarations=declarations or {},
    )
    result = build(request, silent)
    return {variant.name.removeprefix("my-"): variant for variant in result.report.variants}


def operators_of(folder: Path, profile: str) -> list[str]:
    """Return the operators of a variant from `build_loosely`, in order."""
    path = folder / "model-1.0.0" / "model" / f"my-{profile}" / "model.onnx"
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_paddle_export_builds_in_floats_and_in_integers(tmp_path: Path, key: Path) -> None:
    model = packaged(*PADDLE_CLASSIFIER)
    variants = build_loosely(
        tmp_path, key, model, None, ("cpu", "vitisai-xint8"), x=(1, 3, 48, 192)
    )
    assert "DequantizeLinear" in operators_of(tmp_path, "vitisai-xint8")
    assert set(variants) == {"cpu", "vitisai-xint8"}


def test_a_bert_with_open_axes_builds_for_every_target(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "bert.onnx"
    path.write_bytes(tiny_bert().SerializeToString())
    tokens: dict[str, InputDeclaration] = {
        "input_ids": TokenInput(vocabulary=64),
        "attention_mask": TokenInput(vocabulary=2),
    }
    variants = build_loosely(tmp_path, key, path, tokens, input_ids=(1, 8), attention_mask=(1, 8))
    assert set(variants) == set(_PROFILES)


def test_a_yolo_head_builds_for_every_target_and_its_scores_survive(
    tmp_path: Path, key: Path
) -> None:
    path = tmp_path / "detector.onnx"
    path.write_bytes(tiny_detector().SerializeToString())
    variants = build_loosely(tmp_path, key, path, images=(1, 3, 32, 32))
    assert set(variants) == set(_PROFILES)
    ends = {"qnn-htp-a8w8": "DequantizeLinear", "vitisai-xint8": "Concat"}
    for profile, last in ends.items():
        operators = operators_of(tmp_path, profile)
        assert operators[-1] == last, (
            "16 bits hold boxes beside scores, and where 8 are all, floats"
        )
        assert variants[profile].accuracy.value > 0.5
