"""KServe's own clients against a server: `client_check.py HTTP_ADDRESS GRPC_ADDRESS MODEL AXIS…`.

The model has a float input `x` of the given axes, and returns four values of the input as `y`.
"""

import asyncio
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig


def make_request(model: str, x: np.ndarray, *, is_binary: bool) -> InferRequest:
    """Return an inference request."""
    tensor = InferInput("x", list(x.shape), "FP32")
    tensor.set_data_from_numpy(x, binary_data=is_binary)
    parameters = {"binary_data_output": True} if is_binary else None
    return InferRequest(model, [tensor], parameters=parameters)


async def main() -> None:
    """Check health, metadata and inferences in all forms of the protocol."""
    http, grpc, model = sys.argv[1:4]
    shape = [int(axis) for axis in sys.argv[4:]]
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    rest, stub = InferenceRESTClient(RESTConfig(protocol="v2")), InferenceGRPCClient(grpc)
    address = f"http://{http}"
    assert await rest.is_server_live(address)
    assert await rest.is_server_ready(address)
    assert await rest.is_model_ready(address, model)
    assert await stub.is_server_live()
    assert await stub.is_server_ready()
    assert await stub.is_model_ready(model)
    answers = [
        await rest.infer(address, make_request(model, x, is_binary=is_binary), model_name=model)
        for is_binary in (False, True)
    ]
    answers.append(await stub.infer(make_request(model, x, is_binary=True)))
    for answer in answers:
        assert answer.model_name == model
        (output,) = answer.outputs
        assert (output.name, list(output.shape)) == ("y", [1, 4])
        np.testing.assert_array_equal(output.as_numpy(), answers[0].outputs[0].as_numpy())
    await rest.close()
    await stub.close()
    print("conforms")


if __name__ == "__main__":
    asyncio.run(main())
