"""`edgepack build`, from a real model to a bundle that stock tools and the agent accept."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.bundle.archive import unpack
from edgepack.bundle.keys import load_public_key
from edgepack.bundle.manifest import SIGNATURE_FILE, decode_manifest
from edgepack.bundle.verify import verify_folder
from tests.huggingface.drawn_decoders import write_folder
from tests.simulators import warm_programs

COMMAND = (sys.executable, "-m", "edgepack.cli")


def _run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return warm_programs.run(
        (*COMMAND, *words),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, **environment},
        check=False,
    )


def _build(folder: Path, output: str, *more: str) -> subprocess.CompletedProcess[str]:
    samples = () if "--calibration" in more else ("--calibration", "samples.npz")
    profiles = () if "--profile" in more else ("--profile", "fp32")
    key = ("--key", "release.key")
    return _run(folder, "build", "small.onnx", *profiles, *samples, *key, "-o", output, *more)


@pytest.fixture(scope="module")
def built(material: Path) -> Path:
    """Return the archive of a build for `fp32` and `cpu`."""
    done = _build(material, "small-1.2.0.edgepack", "--profile", "fp32", "--profile", "cpu")
    assert done.returncode == 0, done.stderr
    for word in ("fp32", "cpu", "release 1002000", "next    edgepack rollout start"):
        assert word in done.stdout
    return material / "small-1.2.0.edgepack"


@pytest.fixture
def unpacked(built: Path, tmp_path: Path) -> Path:
    """Return the bundle's folder."""
    folder = tmp_path / "small-1.2.0"
    unpack(built, folder)
    return folder


def test_the_bundle_is_a_model_package_that_verifies(unpacked: Path, material: Path) -> None:
    verified = verify_folder(unpacked, [load_public_key(material / "release.pub")])
    manifest = verified.manifest
    assert [variant.name for variant in manifest.variants] == ["fp32", "cpu"]
    assert manifest.facts.name == "small"
    assert manifest.facts.release == 1_002_000
    names = {entry.path for entry in manifest.facts.files}
    told = {"report.html", "report.json", "provenance.json", "ml-bom.cdx.json"}
    assert names == {"golden/golden.npz", *told}


def test_the_manifest_has_features_of_inputs_and_of_classes(unpacked: Path, material: Path) -> None:
    reference = decode_manifest((unpacked / "manifest.json").read_bytes()).facts.reference
    assert {each.tensor for each in reference} == {"images", "scores"}
    images = np.load(material / "samples.npz")["images"]
    level = next(each for each in reference if each.words == "level of 'images'")
    assert level.mean == pytest.approx(images.mean(), abs=0.05)
    assert any(each.kind == "class" for each in reference)


def test_random_samples_are_no_reference(material: Path) -> None:
    done = _build(material, "random-1.0.0", "--calibration", "random:16")
    assert done.returncode == 0, done.stderr
    facts = decode_manifest((material / "random-1.0.0" / "manifest.json").read_bytes()).facts
    assert facts.reference == ()


def _stock_verify(folder: Path, key: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name("model_signing")
    return warm_programs.run(
        (
            *(tool, "verify", "key", folder),
            *("--signature", folder / SIGNATURE_FILE),
            *("--public_key", key),
        ),
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_stock_tool_accepts_it_and_refuses_it_after_one_byte(
    unpacked: Path, material: Path
) -> None:
    key = material / "release.pub"
    assert _stock_verify(unpacked, key).returncode == 0
    for name in ("manifest.json", "model/cpu/model.onnx", "golden/golden.npz"):
        path = unpacked / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        refused = _stock_verify(unpacked, key)
        assert refused.returncode != 0
        assert name in refused.stdout + refused.stderr
        path.write_bytes(content)


def test_the_same_inputs_give_the_same_bytes(material: Path, tmp_path: Path) -> None:
    profile = tmp_path / "always.toml"  # `cpu` publishes the float model where that is faster,
    profile.write_text(  # which for a model as small as this is a matter of luck.
        '[profile]\nname = "always"\nextends = "cpu"\n[gates]\nfloat_instead = []\n'
        "[gates.accuracy.any]\nkeep = 0.9\n"
    )
    folders = []
    for name in ("first", "second"):
        output = tmp_path / name
        output.mkdir()
        words = ("--profile", "fp32", "--profile", str(profile))
        done = _build(material, str(output / "small-1.0.0"), *words)
        assert done.returncode == 0, done.stderr
        folders.append(output / "small-1.0.0")
    first, second = (
        {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        for folder in folders
    )
    assert first.keys() == second.keys()
    for name in first.keys() - {SIGNATURE_FILE}:
        assert first[name].read_bytes() == second[name].read_bytes(), name


def test_the_report_inside_carries_no_times_and_the_one_beside_does(
    built: Path, unpacked: Path
) -> None:
    inside = json.loads((unpacked / "report.json").read_bytes())
    beside = json.loads(built.with_name(f"{built.name}.report.json").read_bytes())
    assert all(variant["timing"] is None for variant in inside["variants"])
    assert beside["variants"][1]["timing"]["latency_ms"] > 0
    assert all(variant["rehearsal"]["ran"] for variant in beside["variants"])
    page = built.with_name(f"{built.name}.report.html").read_text()
    assert "http://" not in page
    assert "https://" not in page


def test_json_prints_the_report(material: Path, tmp_path: Path) -> None:
    done = _build(material, str(tmp_path / "small-1.0.0.edgepack"), "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["report"]["variants"][0]["name"] == "fp32"
    assert len(document["digest"]) == 64


def test_hooks_and_firmware_travel_with_the_model(material: Path, tmp_path: Path) -> None:
    hook = tmp_path / "hooks" / "staged.before.d" / "10-check"
    hook.parent.mkdir(parents=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    output = tmp_path / "small-1.0.0"
    (tmp_path / "fw.raucb").write_bytes(b"image")
    firmware = f"rauc/camera:2.4.0={tmp_path / 'fw.raucb'}"
    words = ("--hooks", str(tmp_path / "hooks"), "--firmware", firmware)
    done = _build(material, str(output), *words)
    assert done.returncode == 0, done.stderr
    shown = _run(material, "inspect", str(output)).stdout
    assert "firmware:     2.4.0 for rauc camera" in shown
    assert (output / "firmware" / "fw.raucb").read_bytes() == b"image"
    assert os.access(output / "hooks" / "staged.before.d" / "10-check", os.X_OK)


def test_a_time_is_recorded_only_when_given(material: Path, tmp_path: Path) -> None:
    output = tmp_path / "small-1.0.0"
    done = _build(material, str(output), "--created-at", "2026-11-21T12:00:00+02:00")
    assert done.returncode == 0, done.stderr
    assert '"2026-11-21T10:00:00Z"' in (output / "manifest.json").read_text()


def test_edgepack_toml_stands_in_for_options(material: Path, tmp_path: Path) -> None:
    for name in ("small.onnx", "samples.npz", "release.key"):
        shutil.copy(material / name, tmp_path)
    assert _run(tmp_path, "init", "small.onnx", "-o", "plain.toml").returncode == 0
    assert 'kind = "image"' in (tmp_path / "plain.toml").read_text()
    done = _run(tmp_path, "init", "small.onnx", "--calibration", "samples.npz")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "edgepack.toml").read_text()
    assert 'kind = "raw" # "image" for pictures' in text, "the samples are arrays"
    (tmp_path / "edgepack.toml").write_text(text.replace('["cpu"]', '["fp32"]'))
    unnumbered = _run(tmp_path, "build", "small.onnx", EDGEPACK_KEY="release.key")
    assert unnumbered.returncode == 1
    assert "--version 1.0.0, or -o small-1.0.0.edgepack" in unnumbered.stderr
    for version, words in (
        ("1.0.0", ("--version", "1.0.0")),
        ("1.2.0", ("-o", "small-1.2.0.edgepack")),
    ):
        done = _run(tmp_path, "build", "small.onnx", *words, EDGEPACK_KEY="release.key")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"small-{version}.edgepack").is_file(), "init fixes no version"


def test_samples_are_needed_where_a_profile_calibrates(material: Path, tmp_path: Path) -> None:
    output = str(tmp_path / "small-1.0.0.edgepack")
    key = ("--key", "release.key")
    done = _run(material, "build", "small.onnx", "--profile", "cpu", *key, "-o", output)
    assert done.returncode == 1
    assert "error: profile 'cpu' calibrates and no samples were given" in done.stderr
    assert "try: --calibration PATH" in done.stderr
    folder = write_folder(tmp_path / "llama", "llama")
    for words in (("cpu-int4",), ("fp32",), ("cpu-int4", "--calibration", "random:9")):
        done = _run(material, "build", str(folder), "--profile", *words, *key, "-o", output)
        assert done.returncode == 1
        assert "try: --calibration prompts.jsonl" in done.stderr


def test_a_float_profile_needs_no_samples_and_says_what_took_their_place(
    material: Path, tmp_path: Path
) -> None:
    output = str(tmp_path / "small-1.0.0.edgepack")
    key = ("--key", "release.key")
    done = _run(material, "build", "small.onnx", "--profile", "fp32", *key, "-o", output)
    assert done.returncode == 0, done.stderr
    assert "No calibration samples were given; random:16 took their place." in done.stdout


def test_open_dimensions_are_named_for_a_profile_that_needs_static_ones(
    material: Path, tmp_path: Path
) -> None:
    done = _build(material, str(tmp_path / "small-1.0.0"), "--profile", "qnn-htp")
    assert done.returncode == 1
    assert "profile 'qnn-htp' needs every dimension fixed" in done.stderr
    assert "try: --shape images=1,3,8,8" in done.stderr


def test_a_refused_profile_fails_the_build_unless_it_may_go_on(
    material: Path, tmp_path: Path
) -> None:
    words = ("--profile", "qnn-htp", "--profile", "fp32")
    output = tmp_path / "small-1.0.0"
    assert _build(material, str(output), *words).returncode == 1
    assert list(tmp_path.iterdir()) == []
    done = _build(material, str(output), *words, "--keep-going")
    assert done.returncode == 0, done.stderr
    assert "refused qnn-htp: profile 'qnn-htp' needs every dimension fixed" in done.stdout
    assert "try: --shape images=1,3,8,8" in done.stdout
    report = json.loads((output / "report.json").read_bytes())
    assert [entry["profile"] for entry in report["refused"]] == ["qnn-htp"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--profile", "cppu"), "there is no profile 'cppu'"),
        (("--key", "gone.key"), "gone.key"),
        (("--key", "release.pub"), "the file holds a public key"),
        (("--shape", "images=one"), "'images=one' is not a shape"),
        (("--shape", "pixels=1,3,8,8"), "the model has no input 'pixels'; it has images"),
        (("--calibration", "gone"), "there are no samples at gone"),
        (("--evaluation", "gone.npz"), "there are no samples at gone.npz"),
        (("--name", "a/b"), "'a/b' is not a model name"),
        (("--release", "-1"), "release -1 is not within 0"),
        (("--version", "2.0.0"), "the version is 1.0.0 by the output's name, and 2.0.0 by"),
        (("--metric", "gone:score"), "the metric's module 'gone' cannot be imported"),
        (("--hooks", "gone"), "the hook folder does not exist"),
        (("--config", "gone.toml"), "cannot read gone.toml"),
        (("--created-at", "yesterday"), "'yesterday' is not a time"),
    ],
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(
    material: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = _build(material, str(tmp_path / "small-1.0.0.edgepack"), *words)
    assert done.returncode == 1
    assert "\nerror: " in f"\n{done.stderr}"
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_the_user_is_reported_with_its_bound(material: Path, tmp_path: Path) -> None:
    (material / "nearness.py").write_text(
        "import numpy as np\nimport onnxruntime\n\n"
        "images = np.load('samples.npz')['images']\n"
        "session = onnxruntime.InferenceSession('small.onnx')\n\n"
        "def score(run):\n"
        "    off = []\n"
        "    for place in range(len(images)):\n"
        "        feeds = {'images': images[place:place + 1]}\n"
        "        want = session.run(None, feeds)[0]\n"
        "        off.append(np.abs(next(iter(run(feeds).values())) - want).mean())\n"
        "    return 1 / (1 + np.mean(off))\n"
    )
    output = str(tmp_path / "small-1.0.0.edgepack")
    words = (
        "--profile",
        "vitisai-xint8",
        "--shape",
        "images=1,3,8,8",
        "--metric",
        "nearness:score",
    )
    done = _build(material, output, *words)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"nearness:score is 0\.\d+ on its \d+ inferences \(float model 1\.0000\): with 95 % "
        r"confidence at least 0\.\d+",
        " ".join(done.stdout.split()),
    ), done.stdout


def test_no_key_says_how_to_make_one(material: Path) -> None:
    done = _run(material, "build", "small.onnx", "--profile", "fp32", "-o", "x-1.0.0.edgepack")
    assert done.returncode == 1
    assert "try: edgepack keys generate -o release, then --key release.key" in done.stderr


def test_an_existing_bundle_is_replaced_only_when_told(built: Path, material: Path) -> None:
    done = _build(material, built.name)
    assert done.returncode == 1
    assert "try: --force replaces it" in done.stderr
    copy = built.with_name("copy-1.0.0.edgepack")
    shutil.copy(built, copy)
    done = _build(material, copy.name, "--force")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_build_leaves_nothing(
    material: Path, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef score(run):\n    time.sleep(60)\n    return 1.0\n"
    )
    words = (
        *("build", material / "small.onnx", "--profile", "fp32"),
        *("--calibration", material / "samples.npz", "--metric", "slow:score"),
        *("--key", material / "release.key", "-o", "out/small-1.0.0.edgepack"),
    )
    output = tmp_path / "out"
    output.mkdir()
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit it.
    process = warm_programs.Popen(
        ("env", "--default-signal=INT", *COMMAND, *words),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            deadline = time.monotonic() + 400
            while not list(output.glob(".small*/variants/fp32")):
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            process.send_signal(number)
            _, errors = process.communicate(timeout=400)
        finally:
            process.kill()
    assert process.returncode != 0
    assert b"Traceback" not in errors
    assert list(output.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(material: Path, tmp_path: Path) -> None:
    """A file size limit stands in for the full disk: writes fail in the middle."""
    limited = ("bash", "-c", 'ulimit -f 8; trap "" XFSZ; exec "$@"', "--", *COMMAND)
    output = str(tmp_path / "small-1.0.0.edgepack")
    words = ("build", "small.onnx", "--profile", "fp32", "--calibration", "samples.npz")
    done = warm_programs.run(
        (*limited, *words, "--key", "release.key", "-o", output),
        cwd=material,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "\nerror: " in f"\n{done.stderr}"
    assert "File too large" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_piped_build_tells_each_step_once_with_the_time_it_took(material: Path) -> None:
    done = _build(material, "told-1.0.0.edgepack", "--profile", "cpu", "--force")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(re.match(r" *\d+\.\d s  \S", line) for line in lines), lines
    assert any(re.search(r"s  cpu: candidate 1: minmax, ", line) for line in lines)
    assert any("cpu: held-out samples: " in line for line in lines)
    assert "cpu: cpu" not in done.stderr


def test_profiles_are_listed_and_shown(material: Path) -> None:
    listed = json.loads(_run(material, "profiles", "list", "--json").stdout)
    assert {"fp32", "cpu", "qnn-htp"} <= {entry["name"] for entry in listed}
    shown = _run(material, "profiles", "show", "qnn-htp")
    assert shown.returncode == 0, shown.stderr
    assert "QNNExecutionProvider, npu" in shown.stdout
    assert "shapes that are fixed" in shown.stdout


def test_a_model_that_is_not_onnx_is_refused(material: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"<html>not found</html>")
    key = ("--key", str(material / "release.key"))
    words = ("build", "model.onnx", "--profile", "fp32", *key, "-o", "x-1.0.0.edgepack")
    done = _run(tmp_path, *words)
    assert done.returncode == 1
    assert "model.onnx is not an ONNX model: it looks like an HTML page" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_model_with_external_data_is_built(material: Path, tmp_path: Path) -> None:
    model = onnx.load(material / "small.onnx")
    onnx.save_model(
        model, str(tmp_path / "small.onnx"), save_as_external_data=True, size_threshold=0
    )
    samples = ("--calibration", str(material / "samples.npz"))
    key = ("--key", str(material / "release.key"))
    words = ("build", "small.onnx", "--profile", "fp32", *samples, *key)
    done = _run(tmp_path, *words, "-o", "small-1.0.0")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("budget", ["0.001s", "3s"])
def test_a_budget_is_for_the_whole_build_and_an_early_end_is_reported(
    material: Path, tmp_path: Path, budget: str
) -> None:
    output = tmp_path / "small-1.0.0.edgepack"
    words = ("--calibration", "samples.npz", "--shape", "images=1,3,8,8", "--key", "release.key")
    command = ("build", "small.onnx", "--profile", "qnn-htp", *words, "--budget", budget)
    done = _run(material, *command, "-o", str(output))
    assert "Traceback" not in done.stderr, done.stderr
    assert output.is_file() == (done.returncode == 0)
    if done.returncode:
        assert "a longer --budget" in done.stderr
    if budget == "0.001s":
        assert done.returncode == 1, "no candidate can be finished in that time"
        assert "ended before the first candidate was finished" in done.stderr
