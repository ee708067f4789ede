"""Loading ONNX Runtime without its messages on stderr.

The library looks for hardware at load time. Every unreadable place (a folder of /sys/class/drm in a
container, say) prints a coloured line in every process, before the log level can be set.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from edgepack.agent.runtime.runtime_words import is_log_line


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Keep ONNX Runtime's log off stderr; other output appears at the end of the block."""
    if sys.stderr is None:  # it was closed as the process began
        yield
        return
    with tempfile.TemporaryFile() as written:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            written.seek(0)
            for line in written.read().splitlines(keepends=True):
                if not is_log_line(line.decode("utf-8", "replace")):
                    os.write(2, line)
