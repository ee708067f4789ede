"""A client that sends unknown tokens is told so; the release that serves has not failed."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edgepack.agent import open_model
from tests.graphs import graph_model
from tests.integration.picture_builds import edgepack, install
from tests.simulators.model_server import ModelServer
from tests.simulators.waiting import wait_until

_ROWS = 50


def save_embedding(path: Path, rows: int) -> None:
    """Write a model from tokens int64 [1, tokens] to the mean of their rows, float32 [1, 8]."""
    table = np.random.default_rng(3).normal(size=(rows, 8)).astype(np.float32)
    onnx.save(
        graph_model(
            f"(int32[1,tokens] ids) => (float[1,8] y) {{ wide = Cast<to={TensorProto.INT64}>(ids) "
            "rows = Gather(table, wide) y = ReduceMean<axes=[1], keepdims=0>(rows) }",
            {"table": table},
        ),
        path,
    )


def build(folder: Path, key: Path, version: str, rows: int) -> Path:
    save_embedding(folder / "words.onnx", rows)
    rng = np.random.default_rng(4)
    ids = rng.integers(0, rows, (40, 1, 6)).astype(np.int32)
    (folder / "samples").mkdir(exist_ok=True)
    for number, one in enumerate(ids):
        np.savez(folder / "samples" / f"{number}.npz", ids=one)
    bundle = folder / f"words-{version}"
    edgepack(
        *("build", folder / "words.onnx", "--profile", "fp32", "--version", version),
        *("--calibration", folder / "samples", "--key", key, "-o", bundle),
    )
    return bundle


def test_unknown_tokens_are_the_clients_fault_unless_the_release_before_knew_them(
    tmp_path: Path, key: Path
) -> None:
    bundle = build(tmp_path, key, "1.0.0", _ROWS)
    install(bundle, key, tmp_path / "state")
    assert f"tokens, whole numbers from 0 to {_ROWS - 1}" in edgepack("inspect", bundle)
    known = np.array([[1, _ROWS - 1]], np.int32)
    with open_model("words", tmp_path / "state", threads=1, poll_s=0.0) as model:
        model.run({"ids": known})
        with pytest.raises(ValueError, match="'ids' has the value 50, and the model has the token"):
            model.run({"ids": known + 1})
        first = model._serving
        assert first.record.latency.snapshot().failures == 0
        install(build(tmp_path, key, "1.1.0", _ROWS - 10), key, tmp_path / "state")

        def has_switched() -> bool:
            model.run({"ids": np.zeros((1, 2), np.int32)})
            return model._serving is not first

        wait_until(has_switched)
        with pytest.raises(ValueError, match="'ids' has the value 49"):
            model.run({"ids": known})
        assert model._serving.record.latency.snapshot().failures == 1, (
            "the release lost tokens of the one before"
        )


def test_model_server_answers_400_to_unknown_tokens(tmp_path: Path, key: Path) -> None:
    install(build(tmp_path, key, "1.0.0", _ROWS), key, tmp_path / "state")
    server = ModelServer(tmp_path)
    server.start()
    asked = {"inputs": [{"name": "ids", "datatype": "INT32", "shape": [1, 1], "data": [_ROWS]}]}
    answer = server.ask("POST", "/v2/models/words/infer", json.dumps(asked).encode())
    assert server.stop() == 0, server.said()
    assert answer.status == 400
    assert "the tokens 0 to 49" in answer.error
