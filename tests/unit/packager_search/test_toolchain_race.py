"""Models timed in another environment: this one, asked in a process of its own."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from edgepack.agent.runtime.facts import read_device_facts
from edgepack.errors import BuildError
from edgepack.packager.profiles.reading import load_profile
from edgepack.packager.runtime.pinned_toolchain import PinnedToolchain
from edgepack.packager.search.race import race_elsewhere
from tests.unit.packager_passes.models import samples_for, spread_model

HERE = PinnedToolchain(python=sys.executable, facts=read_device_facts())
CPU = load_profile("cpu")


def test_each_model_gets_a_median_and_inputs_that_it_lacks_are_left_out(tmp_path: Path) -> None:
    model = spread_model(300.0)
    onnx.save(model, tmp_path / "model.onnx")
    feeds = [{**feeds, "unused": np.zeros(1, np.float32)} for feeds in samples_for(model, 3)]
    paths = (tmp_path / "model.onnx", tmp_path / "model.onnx")
    medians_ms = race_elsewhere(paths, feeds, CPU, HERE, rounds=7).medians_ms
    assert len(medians_ms) == 2
    assert min(medians_ms) > 0.0
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"], "nothing is left"


def test_a_model_that_the_toolchain_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(BuildError) as caught:
        race_elsewhere((path,), [{"x": np.zeros(1, np.float32)}], CPU, HERE, rounds=7)
    assert "survive" not in caught.value.problem, "it answered, and with ONNX Runtime's reason"
    assert caught.value.found_in == f"CPUExecutionProvider of its toolchain, {HERE.words}"


def test_a_provider_that_crashes_there_is_an_error_in_its_last_words(tmp_path: Path) -> None:
    crashing = tmp_path / "python"
    crashing.write_text("#!/bin/sh\necho 'no such chip' >&2\nkill -SEGV $$\n")
    crashing.chmod(0o755)
    toolchain = PinnedToolchain(python=str(crashing), facts=HERE.facts)
    with pytest.raises(BuildError, match=r"does not survive .* SIGSEGV: no such chip"):
        race_elsewhere((tmp_path / "model.onnx",), [], CPU, toolchain, rounds=7)
