"""Compiled templates, kept where Python keeps its own compiled files.

To compile the report's templates takes longer than to quantize a small model.
"""

import importlib.util
import pickle
import sys
from pathlib import Path

import jinja2
from jinja2.bccache import Bucket

from edgepack.durable import write_file

_SUFFIX = ".jinjac"


class CompiledTemplates(jinja2.BytecodeCache):
    """Cache of compiled templates in the `__pycache__` of a module; unused if the folder cannot be
    written.

    jinja2 itself checks that cached code was made from the same template by the same version.

    Args:
        module_file: The module's `__file__`.
    """

    def __init__(self, module_file: str) -> None:
        self._folder = Path(importlib.util.cache_from_source(module_file)).parent

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket from the cache, if present."""
        try:
            with self._file(bucket).open("rb") as file:
                bucket.load_bytecode(file)
        except (OSError, EOFError, pickle.UnpicklingError):
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the bucket's content for the next process."""
        if sys.dont_write_bytecode:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            write_file(self._file(bucket), bucket.bytecode_to_string())
        except OSError:
            return  # a folder of the system's, or a full disk: Python itself goes on as well

    def _file(self, bucket: Bucket) -> Path:
        return self._folder / f"{bucket.key}{_SUFFIX}"
