"""A device's application: reads digits with the active model and keeps count.

The application has no code for bundles, providers or updates: the application opens the model by
name, and edgepack swaps new versions in.

    python -m examples.demo.application STATE_DIR COUNT_FILE
"""

import json
import signal
import sys
import threading
import time
from pathlib import Path

from edgepack.agent import open_model
from edgepack.agent.state.pointer import active_models
from edgepack.durable import write_file
from edgepack.errors import DeviceError
from examples.meter.pictures import as_input, pictures

MODEL = "meter"
PAUSE_S = 0.1


def main(state_dir: Path, count_file: Path) -> None:
    """Read digits until SIGTERM, and write the counts twice a second."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    samples = [(as_input(picture), digit) for picture, digit in pictures(200, seed=7)]
    asked = right = failed = 0
    versions: list[str] = []
    while MODEL not in active_models(state_dir):
        if stop.wait(0.1):
            return
    with open_model(MODEL, state_dir=state_dir) as model:
        written_at = 0.0
        while not stop.wait(PAUSE_S):
            inputs, digit = samples[asked % len(samples)]
            asked += 1
            try:
                (scores,) = model.run({"picture": inputs}).values()
            except DeviceError:
                failed += 1
                continue
            right += int(scores[0].argmax()) == digit
            version = model.bundle.version
            if not versions or versions[-1] != version:
                versions.append(version)
            if time.monotonic() - written_at > 0.5:
                written_at = time.monotonic()
                counts = {"asked": asked, "right": right, "failed": failed, "versions": versions}
                write_file(count_file, json.dumps(counts).encode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
