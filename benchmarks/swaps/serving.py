"""The measured application: runs inferences while its release is swapped."""

import threading
import weakref
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.swaps.slots import NAME
from edgepack.agent import open_model
from edgepack.agent.state.pointer import ActivePointer, PointerFile
from edgepack.agent.telemetry.readings import memory_bytes
from edgepack.bundle.golden import read_golden
from edgepack.bundle.manifest import GOLDEN_FILE

LOADS = 2
"""Threads that run inferences."""
INFERENCES = 5
"""Of each thread between a swap and the reading."""
POLL_S = 0.01


def serve(pipe: Connection, state_dir: Path, pointers: list[ActivePointer], threads: int) -> None:
    """Swap through all releases in a separate process, and send the memory after each."""
    golden = state_dir / "slots" / pointers[0].digest / GOLDEN_FILE
    feeds = read_golden(golden).inputs[0]
    file = PointerFile(state_dir, NAME)
    file.write(pointers[0])
    turn = threading.Barrier(LOADS + 1)
    is_over = threading.Event()
    found: list[int] = []
    with open_model(NAME, state_dir, threads=threads, poll_s=POLL_S) as model:

        def load() -> None:
            while True:
                turn.wait()
                if is_over.is_set():
                    return
                for _ in range(INFERENCES):
                    model.run(feeds)
                turn.wait()

        loads = [threading.Thread(target=load) for _ in range(LOADS)]
        for thread in loads:
            thread.start()
        for number, pointer in enumerate(pointers):
            if number:
                old = weakref.ref(model._serving)
                turn.wait()  # Inferences run while the release is swapped.
                file.write(pointer)
                turn.wait()
                while model.bundle != pointer.bundle or old() is not None:
                    is_over.wait(POLL_S)
                is_over.wait(10 * POLL_S)  # What watches the releases has given memory back.
            turn.wait()
            turn.wait()
            found.append(memory_bytes())
        is_over.set()
        turn.wait()
        for thread in loads:
            thread.join()
    pipe.send(found)
