"""Errors of loading a model."""

from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.source.model import load_source


def refusal_of(path: Path, **shapes: tuple[int, ...]) -> BuildError:
    with pytest.raises(BuildError) as caught:
        load_source(path, shapes)
    assert caught.value.remedy, "every refusal says what to do"
    return caught.value
