"""Contestants, with settings and the purpose of each setting."""

from dataclasses import dataclass

OWN = "edgepack"
"""The peer that is this project, run in the environment of the benchmark."""

TARGETS = {
    "cpu": "CPU, 8-bit",
    "openvino": "OpenVINO, 8-bit",
    "qnn-a8w8": "QNN HTP, A8W8",
    "qnn-a16w8": "QNN HTP, A16W8",
    "power-of-two": "Vitis AI, power-of-two scales",
}
"""Targets by name, with a title each; tables come in this order."""

NPU_TARGETS = ("qnn-a8w8", "qnn-a16w8", "power-of-two")
"""Those whose accuracy is that of exact integer arithmetic."""

SIMULATED_TARGETS = ("qnn-a8w8", "qnn-a16w8")
"""Those for which a build of ours runs the vendor's simulator."""

CALIBRATION = "calibration"
"""The target of `CALIBRATORS`, for the command line; what they cost counts, not what they make."""

CALIBRATION_METHODS = {
    "minmax": "vitisai-a8w8",
    "percentile-99.99": "vitisai-a8w8",
    "mse": "vitisai-a8w8",
    "entropy": "vitisai-a8w8",
    "nonoverflow": "vitisai-xint8",
    "minmse": "vitisai-xint8",
}
"""Our calibration methods, each with the profile that it is measured in: both quantize the whole
graph, as the reference does, and neither's provider nor a simulator of it runs here."""

BY_METHOD = "calibrated-by-"
"""Beginning of the settings of ours that try one calibration method and nothing else."""

WITH_METRIC = "+metric"
"""Ending of the settings of ours that choose by the task's own metric."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A tool with a setting.

    Attributes:
        peer: Runner `benchmarks/peers/PEER.py`, environment `.venv-peers/PEER`.
        setting: A setting of that runner.
        target: A key of `TARGETS`.
        title: Name in the tables.
        shapes: Whether the tool gets the shapes to fix; the target, or its documentation, requires
            this.
        needs: A CPU flag required by the result; "" for none.
    """

    peer: str
    setting: str
    target: str
    title: str
    shapes: bool = False
    needs: str = ""


def _own(profile: str, target: str, *, shapes: bool, needs: str = "") -> tuple[Contestant, ...]:
    return tuple(
        Contestant(
            peer=OWN,
            setting=f"{profile}{ending}",
            target=target,
            title=f"edgepack {profile}{told}",
            shapes=shapes,
            needs=needs,
        )
        for ending, told in (("", ""), (WITH_METRIC, ", told the metric"))
    )


def is_told_the_metric(setting: str) -> bool:
    """Return whether a setting's build chooses by the task's own metric."""
    return setting.endswith(WITH_METRIC)


REFERENCE = Contestant(
    peer="ort", setting="static-default", target="cpu", title="onnxruntime static, MinMax"
)
"""The one whose time and memory are the measure: ONNX Runtime's MinMax."""

CONTESTANTS = (
    *_own("cpu", "cpu", shapes=False),
    *_own("cpu-vnni", "cpu", shapes=False, needs="avx512_vnni"),
    REFERENCE,
    Contestant(
        peer="ort",
        setting="static-per-channel",
        target="cpu",
        title="onnxruntime static, per-channel",
    ),
    Contestant(
        peer="ort",
        setting="static-documented",
        target="cpu",
        title="onnxruntime static, as documented for this CPU",
    ),
    Contestant(
        peer="ort",
        setting="static-percentile",
        target="cpu",
        title="onnxruntime static, Percentile",
    ),
    Contestant(peer="ort", setting="dynamic", target="cpu", title="onnxruntime dynamic"),
    Contestant(peer="optimum", setting="avx2", target="cpu", title="optimum-onnx avx2 static"),
    Contestant(
        peer="optimum",
        setting="avx512_vnni",
        target="cpu",
        title="optimum-onnx avx512_vnni static",
    ),
    Contestant(
        peer="neural_compressor",
        setting="default",
        target="cpu",
        title="onnx-neural-compressor default",
    ),
    Contestant(
        peer="neural_compressor", setting="qdq", target="cpu", title="onnx-neural-compressor QDQ"
    ),
    Contestant(peer="nncf", setting="default", target="cpu", title="NNCF default"),
    Contestant(peer="olive", setting="static", target="cpu", title="Olive static"),
    *_own("openvino-cpu", "openvino", shapes=True),
    Contestant(peer="nncf", setting="transformer", target="openvino", title="NNCF, transformer"),
    *_own("qnn-htp-a8w8", "qnn-a8w8", shapes=True),
    Contestant(
        peer="ort", setting="qnn-a8w8", target="qnn-a8w8", title="onnxruntime QNN A8W8", shapes=True
    ),
    Contestant(peer="olive", setting="qnn", target="qnn-a8w8", title="Olive QNN", shapes=True),
    *_own("qnn-htp", "qnn-a16w8", shapes=True),
    Contestant(
        peer="ort",
        setting="qnn-a16w8",
        target="qnn-a16w8",
        title="onnxruntime QNN A16W8",
        shapes=True,
    ),
    Contestant(peer="quark", setting="a16w8", target="qnn-a16w8", title="Quark A16W8"),
    *_own("vitisai-xint8", "power-of-two", shapes=True),
    Contestant(peer="quark", setting="xint8", target="power-of-two", title="Quark XINT8"),
    Contestant(peer="quark", setting="a8w8", target="qnn-a8w8", title="Quark A8W8"),
)
"""In the tables' order within a target."""

CALIBRATORS = tuple(
    Contestant(
        peer=OWN,
        setting=f"{BY_METHOD}{method}",
        target=CALIBRATION,
        title=f"edgepack {method}",
        shapes=True,
    )
    for method in CALIBRATION_METHODS
)
"""Not among the contestants: what they make is published by nobody, so it is not judged."""
