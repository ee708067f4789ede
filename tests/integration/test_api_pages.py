"""Every public name has its section on a page of the site, with an example that is run."""

import json
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.packager import build
from tests.huggingface.tone_words import draw_sound, write_wave
from tests.integration.api_pages import examples, run_examples
from tests.integration.test_generation import FOLDERS as TRANSLATORS
from tests.integration.test_generation import TRANSLATIONS
from tests.integration.test_quantize_qnn import DIGITS
from tests.integration.test_speech import FOLDER as SPEECH
from tests.integration.test_speech import write_sounds
from tests.integration.test_text_vectors import FOLDER as ENCODER
from tests.integration.test_text_vectors import write_samples
from tests.simulators.pointers import write_pointer
from tests.simulators.text_bundles import install_texts, make_text_bundle
from tests.unit.agent_runtime.documented import install_documented

PACKAGES = ("packager", "agent", "fleet")


@pytest.mark.parametrize("package", PACKAGES)
def test_a_page_has_the_public_names_and_no_others(package: str) -> None:
    assert set(examples(package)) == set(import_module(f"edgepack.{package}").__all__)


@pytest.mark.parametrize(
    ("package", "name"),
    [(package, name) for package in PACKAGES for name in examples(package)],
)
def test_every_public_name_has_an_example_on_its_page(package: str, name: str) -> None:
    found = examples(package)[name]
    assert any(name in code for code in found), f"the page has no example that uses {name}"


def test_the_packagers_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(DIGITS, "model.onnx")
    write_key_pair(generate_key(), Path("release"))
    Path("samples").mkdir()
    for number in range(60):
        image = np.random.default_rng(number).random((1, 1, 32, 32), np.float32)
        np.savez(f"samples/{number:02}.npz", x=image)
    for version in ("1.2.0", "1.3.0"):
        build(
            "model.onnx",
            profiles=["fp32"],
            calibration="samples/",
            key="release.key",
            output=f"ocr-{version}.edgepack",
        )
    names = run_examples("packager")
    assert set(names["result"].variants) == {"cpu", "qnn-htp"}
    assert names["mine"].variants["cpu"].accuracy.metric == "__main__:my_metric"
    assert names["refused"].profile == "strict"
    assert names["update"].equal_for_devices
    assert "a device fetches 0 of" in capsys.readouterr().out


def test_the_agents_page_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pointer(tmp_path, install_documented(tmp_path, tmp_path))
    write_pointer(tmp_path, install_texts(tmp_path, make_text_bundle(tmp_path / "chat")))
    write_key_pair(generate_key(), tmp_path / "release")
    build(
        ENCODER / "model.onnx",
        name="sentences",
        profiles=["fp32"],
        calibration=write_samples(tmp_path / "samples"),
        key=tmp_path / "release.key",
        output=tmp_path / "sentences-1.0.0",
    )
    build(
        SPEECH,
        profiles=["fp32"],
        calibration=write_sounds(tmp_path / "sounds", 6),
        key=tmp_path / "release.key",
        output=tmp_path / "speech-1.0.0",
    )
    write_wave(tmp_path / "words.wav", draw_sound(3)[2])
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in TRANSLATIONS)
    (tmp_path / "prompts.jsonl").write_text(lines)
    build(
        TRANSLATORS / "marian",
        name="translator",
        profiles=["fp32"],
        calibration=tmp_path / "prompts.jsonl",
        key=tmp_path / "release.key",
        output=tmp_path / "translator-1.0.0",
    )
    for name in ("sentences", "speech", "translator"):
        (tmp_path / f"{name}-1.0.0" / "model.sig").unlink()
        write_pointer(tmp_path, install_texts(tmp_path, tmp_path / f"{name}-1.0.0"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGEPACK_STATE_DIR", str(tmp_path))
    assert run_examples("agent")["outputs"]["y"].shape
