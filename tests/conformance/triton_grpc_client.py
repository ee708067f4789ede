"""Triton's own gRPC client against a model server, in a process of its own.

python -m tests.conformance.triton_grpc_client HOST:PORT

The server has the model `tiny` of `tests.unit.agent_runtime.examples`.
"""

import secrets
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import shared_memory

from tests.conformance.triton_client import SHAPE, refused


def tensor(x: np.ndarray, name: str = "x") -> triton.InferInput:
    given = triton.InferInput(name, list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return given


def check_metadata(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny", "1.1.0")
    assert not client.is_model_ready("other")
    found = client.get_server_metadata()
    assert found.name == "edgepack"
    assert "system_shared_memory" in found.extensions
    (given,) = client.get_model_metadata("tiny").inputs
    assert (given.name, given.datatype, list(given.shape)) == ("x", "FP32", SHAPE)
    (row,) = client.get_model_repository_index().models
    assert (row.name, row.version, row.state) == ("tiny", "1.1.0", "READY")


def check_inference(client: triton.InferenceServerClient, x: np.ndarray) -> np.ndarray:
    expected: np.ndarray = client.infer("tiny", [tensor(x)]).as_numpy("y")
    wanted = triton.InferRequestedOutput("y")
    result = client.infer("tiny", [tensor(x)], "1.1.0", outputs=[wanted], request_id="7")
    np.testing.assert_array_equal(result.as_numpy("y"), expected)
    assert result.get_response().id == "7"
    assert result.get_response().model_version == "1.1.0"
    for name in ("tiny", ""):
        (found,) = client.get_inference_statistics(name).model_stats
        assert found.inference_stats.success.count >= 2
        assert found.inference_stats.success.ns > 0
    return expected


def check_errors(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    with refused("[StatusCode.NOT_FOUND] no model 'other'"):
        client.infer("other", [tensor(x)])
    with refused("serves version 1.1.0, not '9'"):
        client.infer("tiny", [tensor(x)], "9")
    with refused("[StatusCode.INVALID_ARGUMENT] the model's inputs are x"):
        client.infer("tiny", [tensor(x, "z")])
    with refused("has shape [2, 3, 8, 8], expected [1, 3, 8, 8]"):
        client.infer("tiny", [tensor(np.repeat(x, 2, 0))])
    with refused("the model's outputs are y"):
        client.infer("tiny", [tensor(x)], outputs=[triton.InferRequestedOutput("z")])
    with refused("[StatusCode.UNIMPLEMENTED]"):
        client.get_trace_settings()


def check_sequence(client: triton.InferenceServerClient, x: np.ndarray) -> None:
    for number in (5, "five"):
        client.infer("tiny", [tensor(x)], sequence_id=number, sequence_start=True)
        client.infer("tiny", [tensor(x)], sequence_id=number, sequence_end=True)
        with refused(f"no sequence '{number}'"):
            client.infer("tiny", [tensor(x)], sequence_id=number)


def check_shared_memory(
    client: triton.InferenceServerClient, x: np.ndarray, expected: np.ndarray
) -> None:
    name = f"edgepack-{secrets.token_hex(8)}"
    sizes = {"in": x.nbytes, "out": expected.nbytes}
    memory = {
        one: shared_memory.create_shared_memory_region(one, f"/{name}-{one}", size)
        for one, size in sizes.items()
    }
    try:
        shared_memory.set_shared_memory_region(memory["in"], [x])
        for one, size in sizes.items():
            client.register_system_shared_memory(one, f"/{name}-{one}", size)
        found = client.get_system_shared_memory_status().regions
        assert {one: region.byte_size for one, region in found.items()} == sizes
        given = triton.InferInput("x", SHAPE, "FP32")
        given.set_shared_memory("in", sizes["in"])
        wanted = triton.InferRequestedOutput("y")
        wanted.set_shared_memory("out", sizes["out"])
        (output,) = client.infer("tiny", [given], outputs=[wanted]).get_response().outputs
        assert output.parameters["shared_memory_region"].string_param == "out"
        got = shared_memory.get_contents_as_numpy(memory["out"], np.float32, expected.shape)
        np.testing.assert_array_equal(got, expected)
        client.unregister_system_shared_memory("in")
        with refused("no shared memory region 'in'"):
            client.infer("tiny", [given])
        client.unregister_system_shared_memory()
        assert not client.get_system_shared_memory_status().regions
    finally:
        for one in memory.values():
            shared_memory.destroy_shared_memory_region(one)


def main() -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    with triton.InferenceServerClient(sys.argv[1]) as client:
        check_metadata(client)
        expected = check_inference(client, x)
        check_errors(client, x)
        check_sequence(client, x)
        check_shared_memory(client, x, expected)
    print("conforms")


if __name__ == "__main__":
    main()
