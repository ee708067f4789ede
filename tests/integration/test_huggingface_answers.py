"""A device answers like `transformers.pipeline` on the float model of a Hugging Face folder.

`tests/huggingface/record.py` made the folders and recorded the answers of the pipeline: a ViT with
classes that exclude each other, a ResNet with scores for each class, pictures of all kinds.
"""

import json
from pathlib import Path

import pytest

from edgepack.agent import open_model
from tests.integration.picture_builds import build_bundle, edgepack, install

FOLDERS = Path(__file__).parents[1] / "huggingface"
PICTURES = FOLDERS / "pictures"


@pytest.mark.parametrize("name", ["vit", "resnet"])
def test_labels_and_scores_are_those_of_the_pipeline(name: str, key: Path, tmp_path: Path) -> None:
    model = FOLDERS / name / "model.onnx"
    bundle = build_bundle(model, "", PICTURES, key, tmp_path / f"{name}-1.0.0")
    assert "output logits: " in edgepack("inspect", bundle)
    said = install(bundle, key, tmp_path / "device")
    assert "prepared here with the same bits as in the build" in said
    recorded = json.loads((FOLDERS / name / "pipeline.json").read_text())["answers"]
    with open_model(name, tmp_path / "device", threads=1) as opened:
        answers = {path: opened.classify(PICTURES / path) for path in recorded}
    assert len(answers) == 12
    for path, expected in recorded.items():
        assert [label.name for label in answers[path]] == [one["label"] for one in expected], path
        scores = [one["score"] for one in expected]
        assert [label.score for label in answers[path]] == pytest.approx(scores, abs=1e-5), path
