"""The child of `providers`: opens a small model on a provider and runs an inference."""

from pathlib import Path

import msgspec
import numpy as np

from edgepack.agent.doctor.providers import TIMEOUT_S, Outcome, Trial
from edgepack.agent.runtime.child import keep_stdout_clean, take_request
from edgepack.agent.runtime.opening import ProviderSettings, open_model_file
from edgepack.decoding import decode_json
from edgepack.errors import DeviceError

MODEL = Path(__file__).with_name("examination.onnx")
"""A quantized 1x1 convolution of 8 channels, opset 17: input `x`, float32 (1, 8, 4, 4)."""
_SHAPE = (1, 8, 4, 4)


def try_provider(trial: Trial) -> Outcome:
    """Return placement and latency of the small model on a provider."""
    try:
        settings = ProviderSettings(provider=trial.provider, device=trial.device)
        session = open_model_file(MODEL, settings)
        feeds = {"x": np.ones(_SHAPE, np.float32)}
        session.run(feeds)
        _, latency_ms = session.run_timed(feeds)
    except (DeviceError, ValueError) as error:
        return Outcome(problem=error.problem if isinstance(error, DeviceError) else str(error))
    return Outcome(placement=session.placement, latency_ms=latency_ms)


def main() -> None:
    """Answer the parent. For the child."""
    trial = decode_json(take_request(), Trial)
    with keep_stdout_clean(TIMEOUT_S) as answer:
        answer.write(msgspec.json.encode(try_provider(trial)) + b"\n")


if __name__ == "__main__":
    main()
