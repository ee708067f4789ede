"""Texts of an encoder and a decoder with a cache, by the rules of `generation_config.json`.

`tests/huggingface/encoder_decoders/` has a translator and a T5 with a cache, `generation.json` has
tokens of transformers' `generate` by several settings, and `translations.json` texts of its
pipeline (`tests/huggingface/record_generation.py`).
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx.external_data_helper import convert_model_to_external_data

from edgepack.agent import open_model
from edgepack.agent.runtime.opening import open_model_file
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.errors import BuildError
from edgepack.packager.graph.queries import attribute
from edgepack.packager.pipeline.request import BuildRequest
from edgepack.packager.stages.build import build_pipeline
from edgepack.packager.stages.cache_check import check_caches
from edgepack.packager.stages.float_pipeline import FloatPipeline
from edgepack.packager.stages.pipeline_file import read_pipeline
from edgepack.packager.stages.plans import plan_variants
from tests.integration.picture_builds import edgepack, install
from tests.simulators import warm_programs
from tests.simulators.late_modules import late
from tests.simulators.model_server import ModelServer
from tests.simulators.ports import free_port

openai = late("openai")

FOLDERS = Path(__file__).parents[1] / "huggingface" / "encoder_decoders"
RECORDED: list[dict[str, Any]] = json.loads((FOLDERS / "generation.json").read_text())
TRANSLATIONS: dict[str, str] = json.loads((FOLDERS / "translations.json").read_text())
FIRST, CACHED = "decoder_model.onnx", "decoder_with_past_model.onnx"


def prompt(number: int) -> dict[str, npt.NDArray[np.int64]]:
    """Return the prompt of `record_generation.py`."""
    places = range(3 + number % 6)
    words = [1 + (number * 7 + 5 * place * place + place) % 24 for place in places]
    ids = np.array([[*words, 0]])
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def copy_folder(parent: Path, settings: dict[str, Any], name: str = "marian") -> Path:
    folder = shutil.copytree(FOLDERS / name, parent / name)
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


FORMS = {"cache": (), "no-cache": (CACHED,), "merged": (CACHED, FIRST)}
"""Files that a folder lacks, by its form. Only the translator has a merged decoder."""


@pytest.mark.parametrize(
    ("number", "form"),
    [
        (number, form)
        for number, one in enumerate(RECORDED)
        for form in FORMS
        if form != "merged" or one["model"] == "marian"
    ],
)
def test_texts_are_those_of_generate(tmp_path: Path, number: int, form: str) -> None:
    recorded = RECORDED[number]
    folder = copy_folder(tmp_path, recorded["settings"], recorded["model"])
    for name in FORMS[form]:
        (folder / name).unlink()
    session = FloatPipeline(read_pipeline(folder, tmp_path)).session
    texts = [session.run(prompt(place))["tokens"].tolist()[0] for place in range(8)]
    assert texts == recorded["texts"]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, key: Path) -> Path:
    """Return the state folder of a device with a translator that follows three beams.

    It is built from a folder with a merged decoder.
    """
    folder = tmp_path_factory.mktemp("translator")
    settings = {**RECORDED[0]["settings"], "num_beams": 3, "max_new_tokens": 20}
    source = copy_folder(folder, settings)
    for name in FORMS["merged"]:
        (source / name).unlink()
    words_of = [text.split() for text in TRANSLATIONS]
    texts = [" ".join(one[turn:] + one[:turn]) for turn in range(3) for one in words_of]
    lines = [json.dumps({"prompt": text}) for text in texts]
    (folder / "prompts.jsonl").write_text("\n".join(lines))
    bundle = folder / "translator-1.0.0"
    words = ("build", source, "--profile", "cpu", "--profile", "fp32", "--key", key, "-o", bundle)
    command = [sys.executable, "-m", "edgepack.cli", *words]
    command += ["--calibration", folder / "prompts.jsonl"]
    done = warm_programs.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "decoder, cpu: candidate 1: " in done.stderr
    assert "explained_variance -" not in done.stderr, "caches that hardly vary decide nothing"
    report = json.loads((folder / "translator-1.0.0.report.json").read_text())
    stages = {one.split(":")[0] for one in report["variants"][0]["recipe"]}
    assert stages == {"encoder", "decoder", "decoder-with-cache"}
    assert any("Devices make texts of texts" in note for note in report["notes"])
    assert "decoder_model_merged.onnx" in edgepack("inspect", bundle, "--json")
    for variant in report["variants"]:
        assert variant["accuracy"]["metric"] == "word_accuracy"
        assert "of 8 texts equal" in " ".join(variant["notes"])
    changes = json.loads(edgepack("compare", bundle, bundle, "--json"))
    assert len(changes["variants"]) == len(report["variants"])
    install(bundle, key, folder / "state")
    return folder / "state"


def test_texts_are_those_of_the_pipeline_of_transformers(device: Path) -> None:
    with open_model("translator", device, threads=1) as model:
        texts = {text: model.complete(text) for text in TRANSLATIONS}
        first = "The river runs slowly."
        assert model.complete(first, max_tokens=2) == " ".join(texts[first].split()[:2])
        with pytest.raises(ValueError, match="is empty"):
            model.complete("")
        with pytest.raises(ValueError, match="call complete"):
            model.generate("Hi")
        with pytest.raises(ValueError, match="71 tokens, the model reads 1 to 64"):
            model.complete("river " * 70)
    kept = sum(texts[text] == expected for text, expected in TRANSLATIONS.items())
    assert kept >= 7, texts  # The selected variant may be quantized.


def test_model_server_and_command_write_the_same_text(device: Path) -> None:
    text = "five white ducks, and children"
    with open_model("translator", device, threads=1) as model:
        expected = model.complete(text)
    port = free_port()
    server = ModelServer(device.parent, f'listen = "{port}"')
    server.start()
    url = f"http://127.0.0.1:{port}/v1"
    try:
        asked = {"model": "translator", "prompt": text}
        whole = server.ask("POST", "/v1/completions", json.dumps(asked).encode()).value
        (choice,) = whole["choices"]
        assert (choice["text"], choice["finish_reason"]) == (expected, "stop")
        assert whole["usage"]["prompt_tokens"] == 7
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
        parts = client.completions.create(model="translator", prompt=text, stream=True)
        assert "".join(part.choices[0].text for part in parts) == expected
        with pytest.raises(openai.BadRequestError, match="leave temperature out"):
            client.completions.create(model="translator", prompt=text, temperature=0.7)
        for key, value in (
            ("response_format", {"type": "json_object"}),
            ("return_token_ids", True),
        ):
            with pytest.raises(openai.BadRequestError, match=f"leave {key} out"):
                client.completions.create(
                    model="translator", prompt=text, stream=True, extra_body={key: value}
                )
        with pytest.raises(openai.NotFoundError, match="answers no messages"):
            client.chat.completions.create(
                model="translator", messages=[{"role": "user", "content": text}]
            )
        assert "translator" in [one.id for one in client.models.list()]
        with open_model("translator", device, via="server") as model:
            assert model.complete(text) == expected
            with pytest.raises(ValueError, match="call complete"):
                model.generate(text)
    finally:
        assert server.stop() == 0, server.said()
    words = ("generate", "translator", text, "--state-dir", str(device))
    command = [sys.executable, "-m", "edgepack.agent.cli", *words]
    done = warm_programs.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == expected


def test_tokenizer_that_does_not_fit_is_rejected(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["more"] = 26
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(BuildError, match="27 tokens up to 26, the model 26"):
        read_pipeline(folder, folder)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beam_groups": 2}, "num_beam_groups is 2"),
        ({"do_sample": True}, "do_sample is True"),
        (
            {"num_beams": 40},
            r"num_beams must be <= 16, and is 40\n.*generation_config.json, num_beams",
        ),
        ({"num_return_sequences": 3}, "num_return_sequences is 3"),
        ({"stop_strings": ["."]}, "stop_strings is"),
        ({"max_length": 0}, "max_length is 0"),
        ({"bad_words_ids": [[3], [4, 999]]}, "the token 999 that it never has"),
        ({"forced_eos_token_id": 999}, "the token 999 at its end"),
        ({"eos_token_id": []}, r"eos_token_id is \[\]"),
    ],
)
def test_rules_that_a_device_does_not_follow_are_rejected(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    folder = copy_folder(tmp_path, {**RECORDED[0]["settings"], **settings})
    with pytest.raises(BuildError, match=words):
        read_pipeline(folder, folder)


def test_decoders_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    shutil.copy(folder / "encoder_model.onnx", folder / CACHED)
    with pytest.raises(BuildError, match="do not fit each other"):
        read_pipeline(folder, folder)


def draw_weights(graph: onnx.GraphProto) -> None:
    """Replace the largest tensor, as if the graph were of another model."""
    weights = max(graph.initializer, key=lambda one: len(one.raw_data))
    other = np.random.default_rng(5).standard_normal(tuple(weights.dims)).astype(np.float32)
    weights.CopyFrom(onnx.numpy_helper.from_array(other, weights.name))


def swap_keys(graph: onnx.GraphProto) -> None:
    """Exchange the inputs of both layers' keys."""
    first, second = (f"past_key_values.{layer}.decoder.key" for layer in range(2))
    swapped = {first: second, second: first}
    for node in graph.node:
        node.input[:] = [swapped.get(name, name) for name in node.input]


def store_outside(model: onnx.ModelProto, folder: Path) -> None:
    """Write weights beside the folder, as the weights of another model."""
    convert_model_to_external_data(model, location="../weights", size_threshold=0)
    (folder.parent / "weights").write_bytes(bytes(10**6))


def store_half(model: onnx.ModelProto, folder: Path) -> None:
    convert_model_to_external_data(model, location="weights", size_threshold=0)
    (folder / "weights").write_bytes(bytes(100))


def swap_branches(model: onnx.ModelProto, folder: Path) -> None:
    for branch in model.graph.node[0].attribute:
        branch.name = {"then_branch": "else_branch"}.get(branch.name, "then_branch")


def swap_keys_of_cache(model: onnx.ModelProto, folder: Path) -> None:
    swap_keys(attribute(model.graph.node[0], "then_branch"))


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (store_outside, "points outside its folder"),
        (store_half, "'weights' is truncated"),
        (swap_branches, "the else_branch of the decoder reads the cache"),
        (swap_keys_of_cache, "does not continue the texts"),
    ],
)
def test_merged_decoder_that_does_not_fit_is_rejected_by_its_name(
    tmp_path: Path, spoil: Callable[[onnx.ModelProto, Path], None], problem: str
) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    for name in FORMS["merged"]:
        (folder / name).unlink()
    file = folder / "decoder_model_merged.onnx"
    model = onnx.load(file)
    spoil(model, folder)
    file.write_bytes(model.SerializeToString())
    work = tmp_path / "work"
    work.mkdir()

    def check() -> None:
        source = read_pipeline(folder, work)
        graphs = {one.name: open_model_file(one.path) for one in source.stages}
        for number in range(4):
            check_caches(source, graphs, prompt(number))

    with pytest.raises(BuildError, match=problem) as error:
        check()
    assert str(error.value.found_in).startswith(str(file))


@pytest.mark.parametrize("spoil", [draw_weights, swap_keys])
def test_cache_that_does_not_continue_the_text_is_rejected(
    tmp_path: Path, key: Path, spoil: Callable[[onnx.GraphProto], None]
) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    model = onnx.load(folder / CACHED)
    spoil(model.graph)
    onnx.save(model, folder / CACHED)
    samples = tmp_path / "prompts"
    samples.mkdir()
    for number in range(4):
        (samples / f"{number}.npz").write_bytes(encode_arrays(prompt(number)))
    output = tmp_path / "translator-1.0.0"
    request = BuildRequest(
        model=folder,
        output=output,
        name="translator",
        version="1.0.0",
        release=1_000_000,
        profiles=("fp32",),
        key=key,
        calibration=str(samples),
    )
    with pytest.raises(BuildError, match="'decoder-with-cache' does not continue the texts"):
        build_pipeline(folder, request, lambda _: None)
    assert not output.exists()


def write_file(folder: Path, loop: str, inputs: str = "") -> Path:
    """Write a pipeline's file for the translator's graphs."""
    names = [(layer, kind) for layer in range(2) for kind in ("key", "value")]
    first = {
        f"past_key_values.{layer}.{half}.{kind}": f"present.{layer}.{half}.{kind}"
        for layer, kind in names
        for half in ("encoder", "decoder")
    }
    grown = {name: made for name, made in first.items() if ".decoder." in name}
    states = [
        ", ".join(f'"{name}" = "{made}"' for name, made in one.items()) for one in (first, grown)
    ]
    mask = 'encoder_attention_mask = "attention_mask"'
    path = folder / "pipeline.toml"
    path.write_text(f"""
[pipeline]
task = "transcript"
outputs = ["text"]
[inputs.input_ids]
kind = "tensor"
dtype = "int64"
shape = [1, "tokens"]
[inputs.attention_mask]
kind = "tensor"
dtype = "int64"
shape = [1, "tokens"]
[[stage]]
name = "encoder"
model = "encoder_model.onnx"
[[stage]]
name = "decoder"
model = "decoder_model.onnx"
inputs = {{ {mask}, encoder_hidden_states = "last_hidden_state"{inputs} }}
outputs = {{ logits = "text" }}
[stage.loop]
tokens = "input_ids"
start = [1]
end = [0]
{loop}
[stage.loop.cache]
stage = "more"
first = {{ {states[0]} }}
next = {{ {states[1]} }}
[[stage]]
name = "more"
model = "{CACHED}"
inputs = {{ {mask} }}
outputs = {{}}
""")
    return path


def test_caches_that_do_not_fit_are_rejected(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    path = write_file(folder, "")
    FloatPipeline(read_pipeline(path, path.parent)).check_caches([prompt(0)])
    whole = path.read_text()
    path.write_text(whole.replace('"present.0.decoder.key"', '"present.9.decoder.key"', 1))
    with pytest.raises(BuildError, match=r"'decoder' has no output 'present\.9\.decoder\.key'"):
        read_pipeline(path, path.parent)
    write_file(folder, "", ', input_ids = "input_ids"')
    with pytest.raises(BuildError, match="input 'input_ids' of stage 'decoder' is given twice"):
        read_pipeline(path, path.parent)
    write_file(folder, "beams = 3")
    graph = onnx.load(folder / "decoder_model.onnx")
    (tokens,) = (one for one in graph.graph.input if one.name == "input_ids")
    tokens.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(graph, folder / "decoder_model.onnx")
    with pytest.raises(
        BuildError, match="follows 3 texts at a time, and input 'input_ids' takes 1"
    ):
        read_pipeline(path, path.parent)


def test_profile_states_the_budget_of_words(tmp_path: Path) -> None:
    source = read_pipeline(copy_folder(tmp_path, RECORDED[0]["settings"]), tmp_path)
    profile = tmp_path / "mine.toml"
    head = '[profile]\nname = "mine"\nextends = "cpu"\n'
    profile.write_text(f"{head}[gates.accuracy.transcript]\nkeep = 0.95\n")
    plans = plan_variants(source, (str(profile), "fp32"))
    assert [plan.keep for plan in plans] == [0.95, 0.99]


def test_a_transcript_is_the_text_of_a_decoder(tmp_path: Path) -> None:
    folder = copy_folder(tmp_path, RECORDED[0]["settings"])
    path = write_file(folder, "")
    assert read_pipeline(path, path.parent).part.settings == {"silent": ((0, 1),)}
    path.write_text(
        path.read_text().replace('outputs = ["text"]', 'outputs = ["last_hidden_state"]')
    )
    with pytest.raises(BuildError, match="is the text of one decoder") as caught:
        read_pipeline(path, path.parent)
    assert caught.value.remedy == "name one of text"
