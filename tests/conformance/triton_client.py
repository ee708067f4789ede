"""Triton's own HTTP client against a model server, in a process of its own.

python -m tests.conformance.triton_client HOST:PORT

The server has the model `tiny` of `tests.unit.agent_runtime.examples`.
"""

import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, shared_memory

SHAPE = [1, 3, 8, 8]


def tensor(x: np.ndarray, *, binary: bool = True, name: str = "x") -> triton.InferInput:
    given = triton.InferInput(name, list(x.shape), "FP32")
    given.set_data_from_numpy(x, binary_data=binary)
    return given


@contextmanager
def refused(part: str) -> Iterator[None]:
    said = ""
    try:
        yield
    except InferenceServerException as error:
        said = str(error)
    assert part in said


def check_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1.1.0")
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "edgepack"
    found = client.get_model_metadata("tiny")
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": SHAPE}]
    index = client.get_model_repository_index()
    assert [(one["name"], one["state"]) for one in index] == [("tiny", "READY")]


def check_inference(client: triton.InferenceServerClient, x: np.ndarray) -> np.ndarray:
    expected: np.ndarray = client.infer("tiny", [tensor(x)]).as_numpy("y")
    for binary_input in (True, False):
        for binary_output in (True, False):
            wanted = triton.InferRequestedOutput("y", binary_data=binary_output)
            given = tensor(x, binary=binary_input)
            result = client.infer("tiny", [given], outputs=[wanted], request_id="7")
            np.testing.assert_array_equal(result.as_numpy("y"), expected)
            assert result.get_response()["id"] == "7"
    waiting = [client.async_infer("tiny", [tensor(x)]) for _ in range(20)]
    for one in waiting:
        np.testing.assert_array_equal(one.get_result().as_numpy("y"), expected)
    statistics = client.get_inference_statistics("tiny")["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] >= 25
    return expected


def check_errors(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    with refused("no model 'other'"):
        client.infer("other", [tensor(x)])
    with refused("the model's inputs are x"):
        client.infer("tiny", [tensor(x, name="z")])
    with refused("has shape [2, 3, 8, 8], expected [1, 3, 8, 8]"):
        client.infer("tiny", [tensor(np.repeat(x, 2, 0))])
    with refused("the model's outputs are y"):
        client.infer("tiny", [tensor(x)], outputs=[triton.InferRequestedOutput("z")])


def check_sequence(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    client.infer("tiny", [tensor(x)], sequence_id=5, sequence_start=True)
    client.infer("tiny", [tensor(x)], sequence_id=5, sequence_end=True)
    with refused("no sequence '5'"):
        client.infer("tiny", [tensor(x)], sequence_id=5)


def check_shared_memory(
    client: triton.InferenceServerClient, x: np.ndarray, expected: np.ndarray
) -> None:
    name = f"edgepack-{secrets.token_hex(8)}"
    keys = {"in": f"/{name}-in", "out": f"/{name}-out"}
    sizes = {"in": x.nbytes, "out": expected.nbytes}
    memory = {
        one: shared_memory.create_shared_memory_region(one, key, sizes[one])
        for one, key in keys.items()
    }
    try:
        shared_memory.set_shared_memory_region(memory["in"], [x])
        for one, key in keys.items():
            client.register_system_shared_memory(one, key, sizes[one])
        assert len(client.get_system_shared_memory_status()) == 2
        given = triton.InferInput("x", SHAPE, "FP32")
        given.set_shared_memory("in", sizes["in"])
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("out", sizes["out"])
        client.infer("tiny", [given], outputs=[wanted])
        got = shared_memory.get_contents_as_numpy(memory["out"], np.float32, expected.shape)
        np.testing.assert_array_equal(got, expected)
        client.unregister_system_shared_memory("in")
        with refused("no shared memory region 'in'"):
            client.infer("tiny", [given])
        client.unregister_system_shared_memory()
        assert client.get_system_shared_memory_status() == []
    finally:
        for one in memory.values():
            shared_memory.destroy_shared_memory_region(one)


def main() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    with triton.InferenceServerClient(sys.argv[1], concurrency=4) as client:
        check_metadata(client)
        expected = check_inference(client, x)
        check_errors(client, x)
        check_sequence(client, x)
        check_shared_memory(client, x, expected)
    print("conforms")


if __name__ == "__main__":
    main()
