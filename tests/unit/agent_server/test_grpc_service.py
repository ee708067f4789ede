"""The gRPC service of a real server process: limits, and clients that mean harm."""

import asyncio
import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.agent.inference_protocol.grpc_messages import (
    CLASSES,
    RAW_INPUTS,
    SERVICE,
    join_raw,
    split_raw,
)
from edgepack.agent.server import grpc_requests, grpc_service, running
from edgepack.agent.server.http_messages import HttpError, Response
from edgepack.errors import DeviceError
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.unit.agent_runtime.examples import install_model, make_inputs

SIDE = 512
X = make_inputs(1)[0]["x"]
WAIT_S = 100.0


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[ModelServer]:
    limits = f'grpc = "{port}"', "queue = 4", "parallel = 1", "body_bytes = 8000000"
    server = ModelServer(tmp_path_factory.mktemp("server"), *limits, "memory_bytes = 20000000")
    for name, side in (("tiny", 8), ("slow", SIDE)):
        pointer = install_model(server.state_dir, 1, scale=1.0, name=name, side=side)
        write_pointer(server.state_dir, pointer)
    server.start()
    yield server
    assert "Traceback" not in server.said()
    assert server.stop() == 0, server.said()


@pytest.fixture(scope="module")
def channel(server: ModelServer, port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel


def request(x: np.ndarray = X, model: str = "tiny", **changes: Any) -> Any:
    tensor = {"name": "x", "datatype": "FP32", "shape": list(x.shape)} | changes
    return CLASSES["ModelInferRequest"](model_name=model, inputs=[tensor])


def send(channel: grpc.Channel, content: bytes, method: str = "ModelInfer") -> bytes:
    answer: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(content, timeout=WAIT_S)
    return answer


def refusal(channel: grpc.Channel, content: bytes, method: str = "ModelInfer") -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        send(channel, content, method)
    return caught.value.code().name, caught.value.details()


def test_values_and_bytes_of_a_tensor_give_the_same_answer(channel: grpc.Channel) -> None:
    found = [
        CLASSES["ModelInferResponse"].FromString(send(channel, one.SerializeToString()))
        for one in (
            request(contents={"fp32_contents": X.ravel().tolist()}),
            CLASSES["ModelInferRequest"](
                inputs=request().inputs, model_name="tiny", raw_input_contents=[X.tobytes()]
            ),
        )
    ]
    assert found[0] == found[1]
    assert len(found[0].raw_output_contents[0]) == 16


@pytest.mark.parametrize(
    ("message", "code", "problem"),
    [
        (request(), "INVALID_ARGUMENT", "input 'x' has no data"),
        (request(model=""), "NOT_FOUND", "no model ''"),
        (request(datatype="FP64", contents={}), "INVALID_ARGUMENT", "has 0 values"),
        (request(datatype="BYTES"), "INVALID_ARGUMENT", "known are FP32"),
        (request(datatype="FP16", contents={}), "INVALID_ARGUMENT", "has no data"),
        (request(shape=[2**62] * 30, contents={}), "INVALID_ARGUMENT", "its shape needs"),
        (request(shape=[-1], contents={}), "INVALID_ARGUMENT", "no valid shape"),
        (
            request(datatype="INT8", shape=[1], contents={"int_contents": [300]}),
            *("INVALID_ARGUMENT", "beyond the range of int8"),
        ),
        (
            request(parameters={"shared_memory_region": {"int64_param": 3}}),
            *("INVALID_ARGUMENT", "a parameter of the request is malformed"),
        ),
        (
            request(parameters={"shared_memory_region": {"string_param": "r"}}),
            *("INVALID_ARGUMENT", "bytes of shared memory"),
        ),
        (
            CLASSES["ModelInferRequest"](model_name="tiny", raw_input_contents=[b"1234"]),
            *("INVALID_ARGUMENT", "1 tensors that belong to no input"),
        ),
        (
            CLASSES["ModelInferRequest"](
                inputs=request(contents={}).inputs, model_name="tiny", raw_input_contents=[b"1234"]
            ),
            *("INVALID_ARGUMENT", "or both"),
        ),
    ],
)
def test_wrong_request_gets_an_error_that_names_the_mistake(
    channel: grpc.Channel, message: Any, code: str, problem: str
) -> None:
    found, said = refusal(channel, message.SerializeToString())
    assert (found, problem in said) == (code, True), said


def test_malformed_messages_get_an_error(server: ModelServer, channel: grpc.Channel) -> None:
    for content in (b"\xff", b"\x2a\x05\xff", b"\x0b", b"\x2a" + b"\xff" * 30, b"\x0a\x01\xff"):
        code, said = refusal(channel, content)
        assert (code, "is malformed" in said) == ("INVALID_ARGUMENT", True), said
    assert "more than 4096 fields" in refusal(channel, b"\x2a\x00" * 5000)[1]
    assert "at most 1024 inputs" in refusal(channel, b"\x0a\x04tiny" + b"\x2a\x00" * 1500)[1]
    assert refusal(channel, b" " * 8_000_001)[0] == "RESOURCE_EXHAUSTED"
    assert "is malformed" in refusal(channel, b"\xff", "ModelReady")[1]
    assert refusal(channel, b"\x0a\x00" * 40_000, "ModelReady")[0] == "RESOURCE_EXHAUSTED"
    assert "needs a name" in refusal(channel, b"", "SystemSharedMemoryRegister")[1]
    assert refusal(channel, b"", "ModelInfers")[0] == "UNIMPLEMENTED"
    assert send(channel, b"", "ServerLive") == b"\x08\x01"


def test_request_without_tensors_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_requests, "MAX_JSON_BYTES", 100)
    with pytest.raises(HttpError, match="more than 100 bytes beside raw_input_contents"):
        grpc_requests.read_request(b"\x0a\x65" + b"x" * 101)


def test_queue_beyond_its_length_is_rejected(channel: grpc.Channel) -> None:
    x = np.zeros((1, 3, SIDE, SIDE), np.float32)
    content = join_raw(request(x, "slow").SerializeToString(), RAW_INPUTS, [x.data.cast("B")])
    infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
    calls = [infer.future(content, timeout=WAIT_S) for _ in range(8)]
    rejected = [one for one in calls if one.exception() is not None]
    assert len(rejected) < 8
    for one in rejected:
        assert one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "4 requests for model 'slow' run or wait" in one.details()
    cancelled = infer.future(content)
    cancelled.cancel()
    small = request(contents={"fp32_contents": X.ravel().tolist()}).SerializeToString()
    assert send(channel, small)


def test_calls_that_send_no_message_harm_nobody(server: ModelServer, channel: grpc.Channel) -> None:
    """The server reads a single message at a time, so much memory does each need at most."""
    is_over = threading.Event()

    def stall() -> Iterator[bytes]:
        is_over.wait(WAIT_S)
        yield from ()

    stalled = channel.stream_stream(f"/{SERVICE}/ModelInfer")(stall())
    try:
        assert send(channel, b"", "ServerLive") == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            next(stalled)
        assert "did not arrive within" in caught.value.details()
    finally:
        is_over.set()
    with contextlib.suppress(grpc.RpcError):
        assert not list(channel.stream_stream(f"/{SERVICE}/ModelInfer")(iter(())))
    assert send(channel, b"", "ServerLive") == b"\x08\x01"


def test_address_in_use_and_missing_extra_are_errors(
    server: ModelServer, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ModelServer(tmp_path, f'grpc = "{port}"')
    other.start(waits=False)
    assert other.wait() == 1
    assert "the model server cannot listen for gRPC" in other.said()
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "edgepack.agent.server.grpc_service", raising=False)
    with pytest.raises(DeviceError, match="gRPC needs the package grpc") as caught:
        asyncio.run(running._start_grpc("1", None, None))  # type: ignore[arg-type]
    assert caught.value.remedy == "pip install 'edgepack[grpc]'"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=3), st.text(max_size=99))
def test_tensors_are_split_from_a_message_and_joined(raw: list[bytes], name: str) -> None:
    whole = CLASSES["ModelInferRequest"](model_name=name, raw_input_contents=raw)
    small = CLASSES["ModelInferRequest"](model_name=name).SerializeToString()
    content, found = split_raw(whole.SerializeToString(), RAW_INPUTS, 10)
    assert ([bytes(one) for one in found], content) == (raw, small)
    assert join_raw(content, RAW_INPUTS, found) == whole.SerializeToString()


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_split_of_any_bytes_loses_nothing_or_is_an_error(content: bytes) -> None:
    try:
        small, raw = split_raw(content, RAW_INPUTS, 10)
    except ValueError:
        return
    assert len(small) + sum(map(len, raw)) <= len(content)


def test_response_is_freed_without_the_garbage_collector() -> None:
    """Tensors that wait for the collector are in no budget."""

    class Inference:
        pass

    async def answer() -> "weakref.ref[Inference]":
        exchange, inference = grpc_service._Exchange(), Inference()
        exchange.on_lost(lambda: (exchange, inference))
        exchange.respond(Response(200, (b"{}",)))
        await exchange.wait()
        return weakref.ref(inference)

    gc.disable()
    try:
        assert asyncio.run(answer())() is None
    finally:
        gc.enable()
