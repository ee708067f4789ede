"""Inferences of a model in the server with inputs in sealed memory: nothing is copied or sent.

The server maps the memory. Seals keep the memory from shrinking and its pages in place: else a
client could end the server.
"""

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from edgepack.agent.inference_protocol.messages import (
    InferRequest,
    InputTensor,
    RegionStatus,
    RequestParameters,
    TensorParameters,
)
from edgepack.agent.inference_protocol.tensors import datatype_of_array
from edgepack.agent.runtime.sessions import SessionTensor, Tensor
from edgepack.agent.serving.bound import check_arrays, make_inputs
from edgepack.agent.serving.server_client import ServerClient
from edgepack.agent.state.model_server import F_SEAL_FUTURE_WRITE
from edgepack.decoding import decode_json

_ALIGNMENT = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL

Infer = Callable[[bytes], dict[str, Tensor]]
"""Runs an inference of a JSON message."""


class ServedBound:
    """Inferences of a model in the server with fixed arrays; for a single thread.

    Made by `ServedModel.bind`; see `BoundCall`. After an update, or a restart of the server, the
    same arrays serve.

    Attributes:
        inputs: The arrays that are read, by input. Write to them in place.
        outputs: The arrays that every run overwrites, by output. Copy what must be kept.
    """

    def __init__(
        self,
        client: ServerClient,
        infer: Infer,
        tensors: tuple[SessionTensor, ...],
        feeds: Mapping[str, Tensor] | Tensor | None,
    ) -> None:
        self._client, self._infer, self._pid = client, infer, os.getpid()
        given = make_inputs(tensors) if feeds is None else check_arrays(tensors, feeds)
        self._file, self._shared = _share(given)
        self.inputs = self._shared if feeds is None else given
        self._end: Callable[[], object] = lambda: None
        self._region, self._message = "", b""
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._register()
            self.outputs = self._infer(self._message)
            undo.pop_all()

    def run(self) -> dict[str, Tensor]:
        """Run an inference on the active model; see `BoundCall.run`.

        Raises:
            ValueError: The release that serves now has other inputs or outputs, the model is
                closed, or this is a forked child, which shares the memory with its parent.
            DeviceError: The provider failed, or the server does not answer.
        """
        if self._pid != os.getpid():
            raise ValueError("the arrays are those of the parent process: call model.bind again")
        if self.inputs is not self._shared:
            for name, array in self._shared.items():
                np.copyto(array, self.inputs[name])
        try:
            found = self._infer(self._message)
        except ValueError as error:
            if self._region not in str(error):
                raise
            self._register()  # The server was started again.
            found = self._infer(self._message)
        is_other = self.outputs.keys() != found.keys() or any(
            (value.dtype, value.shape) != (self.outputs[name].dtype, self.outputs[name].shape)
            for name, value in found.items()
        )
        if is_other:
            raise ValueError(
                "the model gives other outputs than the bound ones: call model.bind again"
            )
        for name, value in found.items():
            np.copyto(self.outputs[name], value)
        return self.outputs

    def close(self) -> None:
        """Let the server forget the memory; the arrays stay."""
        self._end()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        if hasattr(self, "_end"):
            self.close()

    def _register(self) -> None:
        """Pass the memory to the server, and make the message of an inference.

        Raises:
            ValueError: The server does not take the memory.
            DeviceError: The server does not answer, or has no room.
        """
        self._end()
        reply, self._end = self._client.share(self._file)
        self._region = decode_json(bytes(reply.json), RegionStatus).name
        inputs, at = [], 0
        for name, array in self._shared.items():
            place = TensorParameters(
                shared_memory_region=self._region,
                shared_memory_offset=at,
                shared_memory_byte_size=array.nbytes,
            )
            datatype = datatype_of_array(array)
            inputs.append(
                InputTensor(name=name, datatype=datatype, shape=[*array.shape], parameters=place)
            )
            at += _padded(array.nbytes)
        parameters = RequestParameters(binary_data_output=True)
        self._message = msgspec.json.encode(InferRequest(inputs=inputs, parameters=parameters))


def _padded(number: int) -> int:
    return -(-number // _ALIGNMENT) * _ALIGNMENT


def _share(given: Mapping[str, Tensor]) -> tuple[int, dict[str, Tensor]]:
    """Return the descriptor of sealed memory, and copies of arrays in the memory.

    Raises:
        OSError: The system has no such memory, or no room.
    """
    size = max(1, sum(_padded(array.nbytes) for array in given.values()))
    file = os.memfd_create("edgepack", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)
        content = memoryview(mmap.mmap(file, size))
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(file)
        raise
    arrays, at = {}, 0
    for name, array in given.items():
        place = np.frombuffer(content, array.dtype, array.size, at).reshape(array.shape)
        np.copyto(place, array)
        arrays[name] = place
        at += _padded(array.nbytes)
    return file, arrays
