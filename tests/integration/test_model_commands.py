"""`edgepack-agent env`, `explain`, `bench` and `infer` on an installed model."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent import open_model
from edgepack.agent.telemetry.spool import open_spool
from tests.integration.conftest import Keys
from tests.simulators import warm_programs
from tests.simulators.bundles import ExampleBundle, expected_output, make_bundle

SHAPE = (1, 256)


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory, release_keys: Keys
) -> tuple[Path, ExampleBundle]:
    """Return the settings of a device with a model of two variants, and the bundle."""
    folder = tmp_path_factory.mktemp("device it's $HOME")
    bundle = make_bundle(folder / "one", release_keys[0], variants=("cpu", "cpu-vnni"))
    settings = folder / "agent.toml"
    settings.write_text(
        f'device = "cam-1"\nstate_dir = "state"\n[trust]\nkeys = ["{release_keys[1]}"]\n'
        "[probe]\nruns = 3\n"
    )
    run("install", str(bundle.folder), "--soak", "0", "--config", str(settings))
    return settings, bundle


def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    ended = warm_programs.run(
        [sys.executable, "-m", "edgepack.agent.cli", *words], capture_output=True, text=True
    )
    assert ended.returncode == code, ended.stderr
    return ended


def test_a_shell_gets_the_serving_model(installed: tuple[Path, ExampleBundle]) -> None:
    settings, bundle = installed
    facts = json.loads(run("env", "tiny", "--json", "--config", str(settings)).stdout)
    lines = run("env", "tiny", "--config", str(settings)).stdout
    script = f'{lines}\nprintf "%s\\n" "$EDGEPACK_MODEL_PATH" "$EDGEPACK_MODEL_DIGEST"'
    shown = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [facts["path"], bundle.ref.digest]
    assert "it's $HOME" in facts["path"], "the folder's name needs quotes"
    assert Path(facts["path"]).is_file()
    assert facts["provider"] == "CPUExecutionProvider"
    assert facts["options"] == {}
    assert facts["version"] == bundle.ref.version


def test_an_explanation_names_every_candidate(installed: tuple[Path, ExampleBundle]) -> None:
    settings, _ = installed
    found = json.loads(run("explain", "tiny", "--json", "--config", str(settings)).stdout)
    choice = found["pointer"]["choice"]
    text = run("explain", "tiny", "--config", str(settings)).stdout
    assert f"chosen    {choice['chosen']} on CPUExecutionProvider" in text
    assert choice["because"] in text
    for probe in choice["probes"]:
        assert f"{probe['variant']} on {probe['provider']}, {probe['latency_ms']:.3g} ms" in text
    assert {one["variant"] for one in choice["probes"]} | set(choice["rejected"]) == {
        "cpu",
        "cpu-vnni",
    }


@pytest.fixture
def arrays(tmp_path: Path) -> tuple[Path, np.ndarray]:
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(SHAPE)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    return tmp_path, x


def test_an_inference_gives_what_an_application_gets(
    installed: tuple[Path, ExampleBundle], arrays: tuple[Path, np.ndarray]
) -> None:
    settings, _ = installed
    folder, x = arrays
    with open_model("tiny", settings.parent / "state") as model:
        wanted = model.run({"x": x})["y"]
    np.save(folder / "double.npy", x[0].astype(np.float64))  # As numpy saves what a user computes.
    for name in ("x.npy", "x.npz", "double.npy"):
        words = ("infer", "tiny", str(folder / name), "-o", str(folder / "y.npz"))
        found = json.loads(run(*words, "--json", "--config", str(settings)).stdout)
        assert np.array_equal(np.load(folder / "y.npz")["y"], wanted)
        assert found["outputs"][0]["values"] == wanted.ravel().tolist()
    assert np.allclose(wanted.astype(np.float32), expected_output(x, 1), rtol=1e-3, atol=1e-5)
    shown = run("infer", "tiny", str(folder / "x.npy"), "--config", str(settings)).stdout
    assert "y  float32 [" in shown


def test_files_that_do_not_fit_are_named(
    installed: tuple[Path, ExampleBundle], arrays: tuple[Path, np.ndarray]
) -> None:
    settings, _ = installed
    folder, x = arrays
    np.savez(folder / "z.npz", z=x)
    np.save(folder / "wide.npy", np.zeros((1, 257), np.float32))
    np.save(folder / "large.npy", np.full(x.shape, 1e300))
    (folder / "object.npy").write_bytes(b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O'")
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999,), }"
    huge = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n"
    (folder / "huge.npy").write_bytes(huge)
    (folder / "zip.npz").write_bytes(b"PK\x03\x04" + bytes(100))
    (folder / "text.npy").write_text("1 2 3")
    (folder / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr':'<f4' \n")
    below = head.replace(b"99999999999", b"-1         ")
    (folder / "below.npy").write_bytes(huge.replace(head, below))
    for name, fact in (
        ("z.npz", "x: float32"),
        ("wide.npy", "257"),
        ("large.npy", "do not fit into float32"),
        ("object.npy", "cannot be read"),
        ("huge.npy", "cannot be read"),
        ("zip.npz", "cannot be read"),
        ("text.npy", "it is no file of numpy"),
        ("cut.npy", "cannot be read"),
        ("below.npy", "cannot be read"),
        ("none.npy", "No such file"),
    ):
        error = run("infer", "tiny", str(folder / name), "--config", str(settings), code=1).stderr
        assert fact in error
        assert name in error
        assert "Traceback" not in error


def test_places_that_do_not_exist_are_named(
    installed: tuple[Path, ExampleBundle], arrays: tuple[Path, np.ndarray]
) -> None:
    settings, _ = installed
    words = ("infer", "tiny", str(arrays[0] / "x.npz"), "--config", str(settings))
    error = run(*words, "-o", str(arrays[0] / "none" / "y.npz"), code=1).stderr
    assert "the outputs cannot be written: No such file" in error
    assert "Traceback" not in error
    error = run("explain", "tiny", "--config", str(settings.parent / "none.toml"), code=1).stderr
    assert "none.toml" in error
    assert "no release" not in error


def test_a_measurement_says_whether_applications_ran(
    installed: tuple[Path, ExampleBundle], arrays: tuple[Path, np.ndarray]
) -> None:
    settings, _ = installed
    words = ("bench", "tiny", "--seconds", "0.2", "--config", str(settings))
    quiet = json.loads(run(*words, "--json").stdout)
    assert quiet["beside"] == 0
    assert [row["source"] for row in quiet["rows"]] == ["now", "at its probe"]
    assert quiet["rows"][0]["count"] >= 5
    assert open_spool(settings.parent / "state") == ""
    with open_model("tiny", settings.parent / "state") as model:
        process = warm_programs.Popen(
            [sys.executable, "-m", "edgepack.agent.cli", *words], stdout=subprocess.PIPE, text=True
        )
        while process.poll() is None:
            model.run({"x": arrays[1]})
        assert process.stdout is not None
        said = process.stdout.read()
        process.stdout.close()
    assert "inferences of applications" in said


def test_a_model_that_does_not_serve_is_named(installed: tuple[Path, ExampleBundle]) -> None:
    settings, _ = installed
    for words in (("env",), ("explain",), ("bench",), ("infer",)):
        for name in ("ocr", "../tiny", "\x1b[2J"):
            file = ("x.npy",) if words == ("infer",) else ()
            error = run(*words, name, *file, "--config", str(settings), code=1).stderr
            assert "serves on this device" in error
            assert "tiny" in error
            assert "\x1b" not in error
