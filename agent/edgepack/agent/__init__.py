"""The active model of a device, for applications on the device.

    from edgepack.agent import open_model

    with open_model("line-orientation") as model:
        outputs = model.run({"x": pixels})

Importing this package loads nothing: a name is loaded at its first use, and ONNX Runtime with the
first opened model. The agent itself is `edgepack-agent` (`edgepack.agent.cli`).
"""

from typing import TYPE_CHECKING

from edgepack.lazy_names import load_on_first_use

if TYPE_CHECKING:
    from edgepack.agent.generation.texts import TextPiece
    from edgepack.agent.runtime.sessions import SessionTensor, Tensor
    from edgepack.agent.serving.bound import BoundCall
    from edgepack.agent.serving.model import Model, open_model
    from edgepack.agent.serving.model_session import ModelSession
    from edgepack.agent.serving.text_pieces import GeneratedText, Generation
    from edgepack.errors import BundleError, DeviceError, EdgepackError, PictureError, SoundError
    from edgepack.pictures.results import Answer, Box, Label, TextLine
    from edgepack.tasks.description import ModelDescription
    from edgepack.wire.orders import BundleRef
    from edgepack.wire.reports import Choice, ProbeResult

__all__ = [
    "Answer",
    "BoundCall",
    "Box",
    "BundleError",
    "BundleRef",
    "Choice",
    "DeviceError",
    "EdgepackError",
    "GeneratedText",
    "Generation",
    "Label",
    "Model",
    "ModelDescription",
    "ModelSession",
    "PictureError",
    "ProbeResult",
    "SessionTensor",
    "SoundError",
    "Tensor",
    "TextLine",
    "TextPiece",
    "open_model",
]

_MODULES = {
    "BoundCall": "edgepack.agent.serving.bound",
    "Answer": "edgepack.pictures.results",
    "Box": "edgepack.pictures.results",
    "BundleError": "edgepack.errors",
    "BundleRef": "edgepack.wire.orders",
    "Choice": "edgepack.wire.reports",
    "DeviceError": "edgepack.errors",
    "EdgepackError": "edgepack.errors",
    "GeneratedText": "edgepack.agent.serving.text_pieces",
    "Generation": "edgepack.agent.serving.text_pieces",
    "Label": "edgepack.pictures.results",
    "TextLine": "edgepack.pictures.results",
    "Model": "edgepack.agent.serving.model",
    "ModelDescription": "edgepack.tasks.description",
    "ModelSession": "edgepack.agent.serving.model_session",
    "PictureError": "edgepack.errors",
    "SoundError": "edgepack.errors",
    "ProbeResult": "edgepack.wire.reports",
    "SessionTensor": "edgepack.agent.runtime.sessions",
    "Tensor": "edgepack.agent.runtime.sessions",
    "TextPiece": "edgepack.agent.generation.texts",
    "open_model": "edgepack.agent.serving.model",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = load_on_first_use(__name__, _MODULES)
