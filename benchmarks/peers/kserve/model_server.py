"""KServe's server with models in bare ONNX Runtime: `model_server.py HTTP_PORT GRPC_PORT FOLDER`.

The folder has a file NAME.onnx for each model.
"""

import sys
from pathlib import Path

import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer


class Bare(Model):
    """A model in bare ONNX Runtime, with one thread."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.stem)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        self.ready = True

    async def predict(self, payload: InferRequest, headers: object = None, **_: object) -> object:
        """Run an inference."""
        (y,) = self._session.run(None, {one.name: one.as_numpy() for one in payload.inputs})
        output = InferOutput("y", list(y.shape), "FP32")
        output.set_data_from_numpy(y, binary_data=payload.use_binary_outputs)
        return InferResponse(payload.id or "1", self.name, [output])


if __name__ == "__main__":
    http_port, grpc_port, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    models = [Bare(path) for path in sorted(folder.glob("*.onnx"))]
    ModelServer(http_port=http_port, grpc_port=grpc_port, workers=1).start(models)
