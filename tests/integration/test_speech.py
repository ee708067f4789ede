"""From a folder of Whisper to texts of sounds: command line, Python, and OpenAI's client.

`tests/huggingface/record_speech.py` trained `speech`, exported it with Optimum, and recorded the
texts of transformers' pipeline.
"""

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgepack.agent import DeviceError, SoundError, open_model
from edgepack.agent.telemetry import sketches
from edgepack.agent.telemetry.drift import DriftWatch
from edgepack.bundle.forms import read_manifest
from edgepack.bundle.golden import compare_outputs, is_same_answer, read_golden
from edgepack.bundle.keys import generate_key, write_key_pair
from edgepack.errors import BuildError
from edgepack.fleet.documents.gates import BY_NAME
from edgepack.packager.stages.pipeline_file import read_pipeline
from edgepack.packager.stages.pipeline_samples import open_pipeline_samples
from edgepack.tasks.table import items_of
from edgepack.tasks.transcript.words import WordReader
from tests.huggingface.tone_words import LONG_WORDS, RATE, draw_sound, write_wave
from tests.integration.picture_builds import edgepack, install
from tests.integration.test_text_vectors import replace_file
from tests.simulators import warm_programs
from tests.simulators.late_modules import late
from tests.simulators.model_server import ModelServer
from tests.simulators.ports import free_port

openai = late("openai")

FOLDER = Path(__file__).parents[1] / "huggingface" / "speech"
RECORDED = json.loads((FOLDER / "recorded.json").read_text())
SHORT, LONG = (
    {int(number): texts["greedy"] for number, texts in RECORDED[kind].items()}
    for kind in ("short", "long")
)


def write_sounds(folder: Path, count: int = 30) -> Path:
    """Write sounds as WAV files."""
    folder.mkdir()
    for number in range(count):
        write_wave(folder / f"{number:02}.wav", draw_sound(number)[2])
    return folder


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of the recorded sounds and of what they say; one text has a word more."""
    folder = write_sounds(tmp_path_factory.mktemp("sounds") / "wav")
    for number in range(30):
        text = " ".join([*draw_sound(number)[1], *(["rot"] if number == 1 else [])])
        (folder / f"{number:02}.txt").write_text(f"{text}.\n", encoding="utf-8")
    for number in LONG:
        write_wave(folder.parent / f"{number}.wav", draw_sound(number, LONG_WORDS)[2])
    return folder


@pytest.fixture(scope="module")
def bundle(sounds: Path, key: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "speech-1.0.0"
    edgepack(
        *("build", FOLDER, "--profile", "fp32", "--profile", "cpu", "--calibration", sounds),
        *("--key", key, "-o", folder),
    )
    return folder


def test_variants_are_judged_by_word_error_against_the_answers(bundle: Path) -> None:
    report = json.loads((bundle.parent / "speech-1.0.0.report.json").read_text())
    count = sum(len(draw_sound(number)[1]) for number in range(1, 30, 3)) + 1
    for variant in report["variants"]:
        accuracy = variant["accuracy"]
        assert accuracy["metric"] == "word_accuracy"
        own, value = accuracy["float_value"], accuracy["value"]
        assert 1 - 4 / count < own < 1.0, "a word is missing in the float model's text"
        assert accuracy["budget"] == pytest.approx(own - 0.01, abs=1e-5)
        notes = " ".join(variant["notes"])
        assert f"10 answers with {count} words: word error {1 - value:.4f}" in notes
        assert "of 10 texts equal" in notes
    page = (bundle.parent / "speech-1.0.0.report.html").read_text()
    assert "against the answers (at most" in page
    assert f"word error {1 - value:.4f}, float model {1 - own:.4f}" in edgepack("inspect", bundle)


def test_devices_compare_words_without_a_tokenizer(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_manifest(bundle)
    facts = manifest.facts
    (part,) = facts.description.parts
    assert (part.task, WordReader(part).unit) == ("transcript", "word")
    texts = [dict(one) for one in read_golden(bundle / "golden" / "golden.npz").outputs]
    assert len(WordReader(part).read(texts[2]["tokens"])) == len(draw_sound(7)[1])
    agreements = manifest.variants[0].facts.agreements
    right = compare_outputs(texts, texts, {}, agreements)
    assert (right.right, "word error 0.0000" in right.because) == (True, True)
    wrong = compare_outputs(texts, texts[::-1], {}, agreements)
    assert (wrong.right, "transcript" in wrong.because) == (False, True)
    assert not is_same_answer(texts[0], texts[2], {}, agreements)
    items = items_of(facts.description)
    assert BY_NAME["shadow"].worded(0.1, items) == "10.0% of inferences with other texts"
    monkeypatch.setattr(sketches, "SAMPLE_S", 0.0)
    recorder = sketches.SketchRecorder()
    recorder.expect(facts.reference, facts.description)
    for _ in range(60):
        recorder.offer({}, texts[1])
        recorder.snapshot()
    drift = DriftWatch().add(("d", "v", "p"), recorder.snapshot())
    assert drift is not None
    assert "words in a text" in [one.words for one in drift.features]


def test_answers_for_some_samples_are_rejected(sounds: Path, tmp_path: Path) -> None:
    some = write_sounds(tmp_path / "some", 6)
    (some / "01.txt").write_text("fluß halt.", encoding="utf-8")
    source = read_pipeline(FOLDER, tmp_path)
    with pytest.raises(BuildError, match="1 of 2 held-out samples have an answer"):
        open_pipeline_samples(source, some, "")
    number = next(iter(LONG))
    shutil.copy(sounds.parent / f"{number}.wav", some / "01.wav")
    with pytest.raises(BuildError, match=r"01\.wav lasts .* its first chunk of 2 s"):
        open_pipeline_samples(source, some, "")


@pytest.fixture(scope="module")
def served(
    bundle: Path, key: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ModelServer, str]]:
    folder, port = tmp_path_factory.mktemp("server"), free_port()
    said = install(bundle, key, folder / "state")
    assert "prepared  8 golden sounds: prepared here with the same bits as in the build" in said
    server = ModelServer(folder, f'listen = "{port}"')
    server.start()
    yield server, f"http://127.0.0.1:{port}/v1"
    server.kill()


def test_the_bundle_states_sounds_and_tokenizer_under_the_signature(bundle: Path) -> None:
    sound = read_manifest(bundle).facts.description.sound
    assert sound is not None
    assert (sound.rate, sound.samples, sound.fft, sound.hop) == (16_000, 32_000, 400, 160)
    assert (sound.mels, sound.output, sound.tidy) == (80, "tokens", True)
    said = edgepack("inspect", bundle)
    assert "sound at 16000 Hz, in chunks of 2 s, as 80 log-mel features" in said
    assert (bundle / "tokenizer.json").read_bytes() == (FOLDER / "tokenizer.json").read_bytes()
    statement = json.loads((bundle / "provenance.json").read_text())
    names = {one["name"] for one in statement["subject"]}
    assert {"tokenizer.json", "golden/sounds/0-0.wav", "golden/sounds/7-0.wav"} <= names
    read = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    files = ("preprocessor_config.json", "generation_config.json", "tokenizer.json")
    assert {*files, "encoder_model.onnx"} <= {one["name"] for one in read}
    assert "tokenizer.json" in (bundle / "ml-bom.cdx.json").read_text()


def test_texts_are_those_of_the_pipeline_of_transformers(
    served: tuple[ModelServer, str], sounds: Path
) -> None:
    state = served[0].state_dir
    with open_model("speech", state, threads=1) as model:
        texts = {number: model.transcribe(sounds / f"{number:02}.wav") for number in SHORT}
        assert texts == SHORT
        assert len(set(texts.values())) > 8
        for number, text in LONG.items():
            file = sounds.parent / f"{number}.wav"
            assert model.transcribe(str(file)) == text
            assert model.transcribe(file.read_bytes()) == text
        silence = np.zeros(RATE, np.float32)
        assert model.transcribe(silence, rate=RATE) == RECORDED["silence"]["text"]
        sound = draw_sound(3)[2]
        stereo = np.stack([sound * 1.5, sound * 0.5], axis=1)
        whole = (sound * 32768).astype(np.int16)
        for samples in (sound, sound.astype(np.float64), stereo, whole):
            assert model.transcribe(samples, rate=RATE) == SHORT[3]
        with model.session() as session:
            assert session.transcribe(sounds / "05.wav") == SHORT[5]
    with open_model("speech", state, via="server") as model:
        assert model.transcribe(sounds / "07.wav") == SHORT[7]
        assert model.transcribe(draw_sound(8)[2], rate=RATE) == SHORT[8]
        for number, text in LONG.items():
            assert model.transcribe(sounds.parent / f"{number}.wav") == text


def test_a_device_that_prepares_sounds_otherwise_rejects_the_bundle(
    bundle: Path, key: Path, tmp_path: Path
) -> None:
    """A bundle whose golden sound is another than the sample, signed by its owner."""
    other = tmp_path / "speech-1.0.0"
    shutil.copytree(bundle, other)
    content = write_wave(tmp_path / "other.wav", draw_sound(7)[2]).read_bytes()
    for number in range(3):
        replace_file(other, key, f"golden/sounds/{number}-0.wav", content)
    with pytest.raises(AssertionError, match="2 of 8 samples prepared here differ in bits"):
        install(other, key, tmp_path / "device")


def test_an_encrypted_bundle_shows_no_sound_and_serves_on_its_device(
    key: Path, tmp_path: Path
) -> None:
    own, bundle, state = tmp_path / "device", tmp_path / "speech-1.0.0", tmp_path / "state"
    write_key_pair(generate_key(), own)
    sounds = write_sounds(tmp_path / "wav", 6)
    edgepack(
        *("build", FOLDER, "--profile", "fp32", "--calibration", sounds, "--key", key),
        *("--encrypt-to", own.with_suffix(".pub"), "-o", bundle),
    )
    assert b"RIFF" not in (bundle / "golden" / "sounds" / "0-0.wav").read_bytes()
    state.mkdir()
    (state / "agent.toml").write_text(
        f'device = "d"\nstate_dir = "{state}"\n[trust]\nkeys = ["{key.with_suffix(".pub")}"]\n'
        f'[decryption]\nkey_file = "{own.with_suffix(".key")}"\n[probe]\nruns = 1\n'
    )
    words = ("install", bundle, "--config", state / "agent.toml", "--soak", "0")
    assert "prepared  2 golden sounds" in edgepack(*words, module="edgepack.agent.cli")
    with open_model("speech", state, threads=1) as model:
        assert model.transcribe(sounds / "03.wav") == SHORT[3]


def test_infer_prints_the_text_of_a_file(served: tuple[ModelServer, str], sounds: Path) -> None:
    place = ("--state-dir", served[0].state_dir)
    module = "edgepack.agent.cli"
    said = edgepack("infer", "speech", sounds / "03.wav", *place, module=module)
    assert SHORT[3].strip() in said
    number = next(iter(LONG))
    file = sounds.parent / f"{number}.wav"
    found = edgepack("infer", "speech", file, *place, "--json", module=module)
    assert json.loads(found)["text"] == LONG[number]
    command = [sys.executable, "-m", module, "infer", "speech", FOLDER / "config.json", *place]
    shutil.copy(FOLDER / "config.json", sounds.parent / "no.wav")
    command[5] = sounds.parent / "no.wav"
    done = warm_programs.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no WAV file" in done.stderr
    assert "ffmpeg" in done.stderr


def test_what_is_no_sound_is_refused_with_a_remedy(
    served: tuple[ModelServer, str], tmp_path: Path
) -> None:
    with open_model("speech", served[0].state_dir, threads=1) as model:
        for source, words in (
            (b"RIFF", "no WAV file"),
            (tmp_path / "none.wav", "cannot be read"),
            (tmp_path, "not a regular file"),
        ):
            with pytest.raises(SoundError, match=words) as caught:
                model.transcribe(source)
            assert caught.value.remedy
        with pytest.raises(ValueError, match="needs its rate"):
            model.transcribe(np.zeros(100, np.float32))
        with pytest.raises(SoundError, match="not finite"):
            model.transcribe(np.full(100, np.nan, np.float32), rate=RATE)
        with pytest.raises(ValueError, match="writes no texts"):
            model.generate("Once")
    with (
        open_model("speech", served[0].state_dir, via="server") as model,
        pytest.raises(SoundError, match="no WAV file"),
    ):
        model.transcribe(b"RIFF")


def test_a_device_without_tokenizers_says_what_to_install_and_takes_features(
    served: tuple[ModelServer, str], sounds: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edgepack.agent.serving.opened.has_tokenizers", lambda: False)
    with open_model("speech", served[0].state_dir, threads=1) as model:
        with pytest.raises(DeviceError, match="need the package tokenizers") as caught:
            model.transcribe(sounds / "00.wav")
        assert "edgepack[generative]" in str(caught.value.remedy)
        assert model.run(np.zeros((1, 80, 200), np.float32))["tokens"].dtype == np.int64


def test_openai_client_gets_texts_and_understands_errors(
    served: tuple[ModelServer, str], sounds: Path
) -> None:
    with openai.OpenAI(base_url=served[1], api_key="none", max_retries=0) as client:
        assert [one.id for one in client.models.list()] == ["speech"]
        create = client.audio.transcriptions.create
        for number, text in SHORT.items():
            with (sounds / f"{number:02}.wav").open("rb") as opened:
                answer = create(model="speech", file=opened)
            assert answer.text == text
            assert answer.usage.type == "duration"
            assert answer.usage.seconds == pytest.approx(draw_sound(number)[2].size / RATE)
        for number, text in LONG.items():
            path = sounds.parent / f"{number}.wav"
            assert create(model="speech", file=path, response_format="text") == text
        named = ("a.wav", io.BytesIO((sounds / "04.wav").read_bytes()))
        assert create(model="speech", file=named, temperature=0).text == SHORT[4]
        content = (sounds / "04.wav").read_bytes()
        for given, words in (
            ({"file": b"ID3" + content}, "no WAV file.*ffmpeg"),
            ({"file": content[:-10]}, "cut short"),
            ({"response_format": "srt"}, "srt"),
            ({"prompt": "red"}, "leave prompt, language and temperature out"),
            ({"language": "de"}, "leave prompt, language and temperature out"),
            ({"temperature": 0.5}, "leave prompt, language and temperature out"),
            ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
            ({"stream": True}, "'stream'"),
        ):
            with pytest.raises(openai.BadRequestError, match=words) as caught:
                create(**({"model": "speech", "file": content} | given))
            assert caught.value.type == "invalid_request_error"
        with pytest.raises(openai.NotFoundError, match="no model 'other'"):
            create(model="other", file=content)
        with pytest.raises(openai.NotFoundError, match="'speech' makes no vectors"):
            client.embeddings.create(model="speech", input="no")


def test_hostile_forms_are_refused_and_the_server_serves_on(
    served: tuple[ModelServer, str], sounds: Path
) -> None:
    server, content = served[0], (sounds / "00.wav").read_bytes()
    name = b'Content-Disposition: form-data; name="%s"\r\n\r\n'
    model = b"--b\r\n" + name % b"model" + b"speech\r\n"
    file = b"--b\r\n" + name % b"file" + content + b"\r\n"
    path, kind = "/v1/audio/transcriptions", {"Content-Type": "multipart/form-data; boundary=b"}
    good = server.ask("POST", path, model + file + b"--b--\r\n", kind)
    assert good.value["text"] == SHORT[0]
    for body, words in (
        (b"", "begin with its boundary"),
        (b"--b", "malformed"),
        (b"--b--\r\n", "no part 'file'"),
        (model + file, "part 2 of the form is malformed"),
        (model + file + b"--b--\r\n" + model, "malformed"),
        (model + file + model + b"--b--", "two parts 'model'"),
        (b"--b\r\n" * 100, "more than 32 parts"),
        (b"--b\r\n\r\n\r\nx\r\n--b--", "no name"),
        (b"--b\r\n" + b"a" * 5000 + b"\r\n\r\n\r\n--b--", "part 1 of the form is malformed"),
        (model + b"--b--", "no part 'file'"),
        (file + b"--b--", "model"),
        (model + b"--b\r\n" + name % b"file" + b"\r\n--b--", "no WAV file"),
        (b"--b\r\n" + name % b"model" + b"a" * 5000 + b"\r\n" + file + b"--b--", "4096 bytes"),
        (b"--b\r\n" + name % b"model" + b"\xff\xfe\r\n" + file + b"--b--", "no model"),
    ):
        told = server.ask("POST", path, body, kind)
        assert told.status in (400, 404), body[:80]
        assert words in told.value["error"]["message"], told.value
    described = server.ask("GET", "/v2/openapi.json").value
    kinds = described["paths"][path]["post"]["requestBody"]["content"]
    assert kinds["multipart/form-data"]["schema"]["$ref"].endswith("TranscriptionForm")
    form = described["components"]["schemas"]["TranscriptionForm"]
    assert form["properties"]["file"] == {"type": "string", "contentMediaType": "audio/wav"}
    for kind, words in (
        ({"Content-Type": "application/json"}, "is no form"),
        ({"Content-Type": "multipart/form-data"}, "is no form"),
        ({"Content-Type": "multipart/form-data; boundary=" + "b" * 71}, "boundary"),
        ({}, "is no form"),
    ):
        told = server.ask("POST", path, model + file + b"--b--", kind)
        assert (told.status, words in told.value["error"]["message"]) == (400, True), told.value


def test_a_folder_without_tokenizer_takes_features_and_says_so(
    sounds: Path, key: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(FOLDER, folder)
    (folder / "tokenizer.json").unlink()
    source = read_pipeline(folder, folder)
    assert source.texts is None
    assert "the folder has no tokenizer.json" in source.notes[0]


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("preprocessor_config.json", {"feature_size": 128}, r"features \[1, 128, 200\]"),
        (
            "preprocessor_config.json",
            {"feature_extractor_type": "Other"},
            "WhisperFeatureExtractor",
        ),
        ("preprocessor_config.json", {"n_fft": "many"}, "n_fft|fft"),
        ("preprocessor_config.json", {"dither": 0.1}, "without dither"),
        ("generation_config.json", {"language": "fr"}, "no language 'fr'"),
        ("tokenizer.json", {"model": 3}, "tokenizer cannot be read"),
    ],
)
def test_files_that_do_not_fit_are_rejected(
    tmp_path: Path, file: str, change: dict[str, Any], words: str
) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(FOLDER, folder)
    content = json.loads((folder / file).read_text()) | change
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(BuildError, match=words) as caught:
        read_pipeline(folder, folder)
    assert file in str(caught.value.found_in)
