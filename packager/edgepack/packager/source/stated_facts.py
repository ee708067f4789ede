"""Facts in a model's files: the metadata of its ONNX file, its Hugging Face model card.

Strangers wrote these facts: bounded text, used only for the bill of materials, after the statements
of `edgepack.toml`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import onnx

from edgepack.text import printable

CARD = "README.md"

_MOST_LETTERS = 4000
_MOST_CARD_BYTES = 1 << 20
_MOST_NAMES = 50


class StatedFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts found; "" and () for missing facts.

    Attributes:
        license: Given text: an SPDX identifier, or another name.
        authors, description, task, version: Likewise.
        exporter: Program that wrote the ONNX file, with its version.
        datasets: Names of data that the model was trained with.
        base_models: Models that this model is based on.
    """

    license: str = ""
    authors: tuple[str, ...] = ()
    description: str = ""
    task: str = ""
    version: str = ""
    exporter: str = ""
    datasets: tuple[str, ...] = ()
    base_models: tuple[str, ...] = ()


def read_metadata(model: onnx.ModelProto) -> StatedFacts:
    """Return the facts in an ONNX file's metadata, by keys of the ONNX standard and of
    exporters.
    """
    told = {entry.key.lower(): entry.value for entry in model.metadata_props}
    author = _words(told.get("model_author") or told.get("author"))
    return StatedFacts(
        license=_words(told.get("model_license") or told.get("license")),
        authors=(author,) if author else (),
        description=_words(told.get("description") or model.doc_string),
        task=_words(told.get("task")),
        version=_words(told.get("version") or (model.model_version or "")),
        exporter=_words(f"{model.producer_name} {model.producer_version}"),
    )


def read_model_card(folder: Path) -> StatedFacts:
    """Return the facts in the head of a model card (`README.md`, YAML); empty if unreadable."""
    import yaml

    try:
        with (folder / CARD).open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_CARD_BYTES)
        found = yaml.safe_load(text.split("---\n")[1]) if text.startswith("---\n") else {}
    except (OSError, IndexError, yaml.YAMLError, RecursionError):
        found = {}
    head: Mapping[str, Any] = found if isinstance(found, dict) else {}
    named = _words(head.get("license_name")) if head.get("license") == "other" else ""
    return StatedFacts(
        license=named or _words(head.get("license")),
        task=_words(head.get("pipeline_tag")),
        datasets=_names(head.get("datasets")),
        base_models=_names(head.get("base_model")),
    )


def combine(first: StatedFacts, second: StatedFacts) -> StatedFacts:
    """Return each fact from the first struct that has the fact."""
    return StatedFacts(
        **{
            name: getattr(first, name) or getattr(second, name)
            for name in StatedFacts.__struct_fields__
        }
    )


def _names(found: object) -> tuple[str, ...]:
    listed = found if isinstance(found, list) else [found]
    return tuple(filter(None, map(_words, listed[:_MOST_NAMES])))


def _words(found: object) -> str:
    if not isinstance(found, str | int | float) or isinstance(found, bool):
        return ""
    return printable(" ".join(str(found).split()))[:_MOST_LETTERS]
