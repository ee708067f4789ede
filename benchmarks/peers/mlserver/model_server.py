"""MLServer with models in bare ONNX Runtime: `model_server.py HTTP_PORT GRPC_PORT FOLDER`.

The folder has a file NAME.onnx for each model. Models run in the server's own process, which is
the fastest of MLServer's settings for a single client.
"""

import asyncio
import sys
from pathlib import Path

import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse


class Bare(MLModel):
    """A model in bare ONNX Runtime, with one thread."""

    async def load(self) -> bool:
        """Open the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run an inference."""
        feeds = {one.name: NumpyCodec.decode_input(one) for one in payload.inputs}
        (y,) = self._session.run(None, feeds)
        output = NumpyCodec.encode_output("y", y)
        return InferenceResponse(model_name=self.name, id=payload.id, outputs=[output])


async def main() -> None:
    """Serve until a signal."""
    http_port, grpc_port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    server = MLServer(
        Settings(
            host="127.0.0.1",
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_endpoint=None,
            parallel_workers=0,
            grpc_max_message_length=64 * 1024 * 1024,
        )
    )
    models = [
        ModelSettings(
            name=path.stem, implementation=Bare, parameters=ModelParameters(uri=str(path))
        )
        for path in folder.glob("*.onnx")
    ]
    await server.start(models)


if __name__ == "__main__":
    asyncio.run(main())
