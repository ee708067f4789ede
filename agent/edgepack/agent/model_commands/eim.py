"""A model as a program of Edge Impulse's Linux runners: JSON over a unix socket.

The runner starts the program with the path of a socket, and sends requests without a separator; an
answer ends with a NUL byte. A picture comes as one number for each pixel, `red << 16 | green << 8 |
blue`, in the size that the answer to `hello` states.
"""

import contextlib
import math
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgepack.agent.serving.model import Model, open_model
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError, EdgepackError
from edgepack.pictures.answers import ABILITIES, find_parts, name_class
from edgepack.tasks.description import MAX_CLASS_NAMES, TaskOutputs

MAX_REQUEST_BYTES = 64 * 2**20
_PACKET_BYTES = 2**20
_BETWEEN = b"\0\r\n "
"""Bytes that may separate requests."""
_CAMERA, _UNKNOWN = 3, 0
"""Kinds of sensors."""


class _Request(msgspec.Struct):
    id: int = 0
    hello: int = 0
    classify: list[float] | None = None


def serve_eim(name: str, state_dir: Path, path: Path, *, threads: int) -> None:
    """Answer runners at a socket until a signal ends the process.

    Args:
        name: The model; updates are followed, and fail no request.
        state_dir: The agent's state folder.
        path: The socket, which is made.
        threads: Threads within an operator; 0 leaves the number to ONNX Runtime.

    Raises:
        EdgepackError: Nothing serves, or the socket cannot be made.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))  # The model is closed: no death.
    with open_model(name, state_dir, threads=threads) as model:
        server = socket.socket(socket.AF_UNIX)
        try:
            server.bind(str(path))
            server.listen()
        except OSError as error:
            raise DeviceError(
                f"the socket cannot be made: {error.strerror or error}", found_in=str(path)
            ) from error
        with server, contextlib.ExitStack() as stack:
            stack.callback(path.unlink, missing_ok=True)
            while True:
                peer, _ = server.accept()
                with peer, contextlib.suppress(OSError):
                    _talk(peer, name, model)


def _talk(peer: socket.socket, name: str, model: Model) -> None:
    """Answer the requests of a runner until its end."""
    received = b""
    while packet := peer.recv(_PACKET_BYTES):
        received += packet
        if len(received) > MAX_REQUEST_BYTES:
            return
        if not received.rstrip(_BETWEEN).endswith(b"}"):  # Only whole requests end so.
            continue
        while received := received.strip(_BETWEEN):
            try:
                request, received = _take_request(received)
            except (ValueError, RecursionError) as error:
                if "truncated" in str(error):
                    break
                received = b""
                answer = _failure(0, f"not a request of a runner: {error}")
            else:
                answer = _answer(request, name, model)
            peer.sendall(msgspec.json.encode(answer) + b"\0")


def _take_request(received: bytes) -> tuple[_Request, bytes]:
    """Return the first request, and the bytes behind it.

    Raises:
        ValueError: The bytes are no request; "truncated" if more bytes may complete it.
    """
    try:
        return decode_json(received, _Request), b""
    except msgspec.DecodeError as error:
        # Another request follows: a runner need not wait for an answer.
        found = re.search(r"trailing characters \(byte (\d+)\)", str(error))
        if found is None:
            raise
        end = int(found[1]) - 1
        return decode_json(received[:end], _Request), received[end:]


def _answer(request: _Request, name: str, model: Model) -> dict[str, Any]:
    try:
        if request.hello:
            return {"id": request.id, "success": True, **_describe(name, model)}
        if request.classify is not None:
            return {"id": request.id, "success": True, **_infer(request.classify, model)}
    except (EdgepackError, ValueError, OverflowError, RuntimeError) as error:
        return _failure(request.id, str(error))
    return _failure(request.id, "unknown request: hello and classify are known")


def _failure(number: int, problem: str) -> dict[str, Any]:
    return {"id": number, "success": False, "error": problem}


def _describe(name: str, model: Model) -> dict[str, Any]:
    described, picture = model.description, model.description.picture
    labels: tuple[str, ...] = ()
    for ability in ("detect", "classify"):
        for part in find_parts(described, ability):
            count = len(part.class_names) or _class_count(part, model)
            labels = tuple(name_class(part, one) for one in range(count))
    is_detector = bool(find_parts(described, "detect"))
    kind = "object_detection" if is_detector else "classification" if labels else "freeform"
    return {
        "model_parameters": {
            "axis_count": 1,
            "frequency": 0,
            "has_anomaly": 0,
            "image_channel_count": 3 if picture else 0,
            "image_input_frames": 1 if picture else 0,
            "image_input_height": picture.height if picture else 0,
            "image_input_width": picture.width if picture else 0,
            "image_resize_mode": "squash",
            "input_features_count": _feature_count(model),
            "interval_ms": 1,
            "label_count": len(labels),
            "labels": labels,
            "model_type": kind,
            "sensor": _CAMERA if picture else _UNKNOWN,
            "slice_size": 0,
            "threshold": 0.0,
            "use_continuous_classification": False,
        },
        "project": {
            "deploy_version": model.bundle.release,
            "id": 0,
            "name": f"{name} {model.bundle.version}",
            "owner": "edgepack",
        },
    }


def _class_count(part: TaskOutputs, model: Model) -> int:
    """Return the number of classes by the shape of a classifier's scores; 0 if it is not fixed."""
    shapes = (one.shape for one in model.outputs if one.name == part.outputs[0])
    last = next((shape[-1] for shape in shapes if shape), 0)
    return last if isinstance(last, int) and 1 < last <= MAX_CLASS_NAMES else 0


def _feature_count(model: Model) -> int:
    picture = model.description.picture
    return picture.height * picture.width if picture else math.prod(_shape(model))


def _shape(model: Model) -> tuple[int, ...]:
    """Return the shape of the only input, free axes as 1.

    Raises:
        ValueError: The model has several inputs.
    """
    if len(model.inputs) != 1:
        raise ValueError(f"the model has {len(model.inputs)} inputs, a runner gives one")
    return tuple(size if isinstance(size, int) else 1 for size in model.inputs[0].shape)


def _infer(features: list[float], model: Model) -> dict[str, Any]:
    if len(features) != (count := _feature_count(model)):
        raise ValueError(f"{len(features)} features came, the model takes {count}")
    picture = model.description.picture
    began = time.perf_counter()
    question: npt.NDArray[Any] | Mapping[str, npt.NDArray[Any]]
    if picture is not None:
        question = _pixels(features).reshape(picture.height, picture.width, 3)
    else:
        (taken,) = model.inputs
        question = {taken.name: np.array(features, taken.dtype).reshape(_shape(model))}
    result = _result(question, model)
    taken_us = round((time.perf_counter() - began) * 1e6)
    timing = {"dsp": 0, "classification": taken_us // 1000, "anomaly": 0}
    timing |= {"dsp_us": 0, "classification_us": taken_us, "anomaly_us": 0}
    return {"result": result, "timing": timing}


def _pixels(features: list[float]) -> npt.NDArray[np.uint8]:
    """Return uint8 (n, 3), red first.

    Raises:
        ValueError: A feature is not a pixel.
    """
    values = np.array(features)
    if not ((values >= 0) & (values < 2**24)).all():
        raise ValueError("a pixel is a number from 0 to 16777215")
    return values.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 1:]


def _result(question: Any, model: Model) -> dict[str, Any]:
    answers: dict[str, Callable[[], dict[str, Any]]] = {
        "detect": lambda: {"bounding_boxes": [_box(box) for box in model.detect(question)]},
        "classify": lambda: {  # Of classes that share a name, the likeliest counts.
            "classification": {
                one.name: one.score for one in reversed(model.classify(question, top=2**31))
            }
        },
    }
    for ability, answer in answers.items():
        if find_parts(model.description, ability):
            return answer()
    if not isinstance(question, Mapping):
        words = " or ".join(ABILITIES[one].words for one in answers)
        raise ValueError(f"a runner asks a model that {words}")  # noqa: TRY004 (of the model)
    outputs = model.run(question)
    return {"freeform": [value.ravel().tolist() for value in outputs.values()]}


def _box(box: Any) -> dict[str, Any]:
    left, top = round(box.left), round(box.top)
    size = {"width": round(box.right) - left, "height": round(box.bottom) - top}
    return {"label": box.name, "value": box.score, "x": left, "y": top, **size}
