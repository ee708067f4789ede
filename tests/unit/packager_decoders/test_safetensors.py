"""Files of weights are hostile until each tensor's place is checked."""

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepack.errors import BuildError
from edgepack.packager.source.decoders import weights as module
from edgepack.packager.source.decoders.weights import FILE, INDEX, Rows, open_weights
from tests.huggingface.drawn_decoders import write_safetensors

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def _write(folder: Path, header: Any, content: bytes = bytes(8), length: int | None = None) -> Path:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(encoded) if length is None else length
    (folder / FILE).write_bytes(struct.pack("<Q", size) + encoded + content)
    return folder


def test_a_matrix_comes_in_pieces_whole_or_transposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 64)
    first, second = (np.arange(n * 6, dtype=np.float32).reshape(n, 6) for n in (5, 7))
    write_safetensors(tmp_path / FILE, {"a": first, "b": second})
    weights = open_weights(tmp_path)
    parts = (Rows(name="a"), Rows(name="b", start=2, stop=6))
    whole = np.concatenate([first, second[2:6]])
    plain = list(weights.pieces(parts, is_transposed=False))
    turned = list(weights.pieces(parts, is_transposed=True))
    assert min(len(plain), len(turned)) > 1
    assert b"".join(piece.tobytes() for piece in plain) == whole.tobytes()
    assert b"".join(piece.tobytes() for piece in turned) == whole.T.tobytes()


def test_tensors_of_several_files_are_found_by_the_index(tmp_path: Path) -> None:
    values = np.ones((2, 2), np.float32)
    for number in (1, 2):
        write_safetensors(tmp_path / f"m-{number}.safetensors", {f"t{number}": values * number})
    index = {"weight_map": {"t1": "m-1.safetensors", "t2": "m-2.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    weights = open_weights(tmp_path)
    assert sorted(weights) == ["t1", "t2"]
    assert weights.read("t2").tolist() == [[2.0, 2.0], [2.0, 2.0]]
    (tmp_path / "m-2.safetensors").unlink()
    with pytest.raises(BuildError, match=r"'m-2.safetensors', which is not a file .*2 are named"):
        open_weights(tmp_path)


@pytest.mark.parametrize("name", ["../m.safetensors", "/etc/passwd", "a/b"])
def test_an_index_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(BuildError, match="not a file of the folder"):
        open_weights(tmp_path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(BuildError, match=r"only pytorch_model\.bin: a pickle"):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"a": ENTRY | {"data_offsets": [0, 12]}}, "bytes 0 to 12 of 8"),
        ({"a": ENTRY | {"data_offsets": [8, 16]}}, "bytes 8 to 16 of 8"),
        ({"a": ENTRY | {"shape": [3]}}, "bytes 0 to 8 of 8"),
        ({"a": ENTRY | {"shape": [-2]}}, "header cannot be read"),
        ({"a": ENTRY | {"shape": [2**40, 2**40]}}, "bytes 0 to 8"),
        ({"a": ENTRY | {"data_offsets": [8, 0]}}, "bytes 8 to 0"),
        ({"a": {"dtype": "F32"}}, "header cannot be read"),
        (b"[1, 2]", "header cannot be read"),
        (b"\xff\xfe", "header cannot be read"),
        (b"[" * 100_000, "header cannot be read"),
    ],
)
def test_a_place_outside_the_file_is_an_error(tmp_path: Path, header: Any, problem: str) -> None:
    with pytest.raises(BuildError, match=problem):
        open_weights(_write(tmp_path, header))


@pytest.mark.parametrize("length", [0, 10**6, 2**63])
def test_a_header_longer_than_its_file_is_not_read(tmp_path: Path, length: int) -> None:
    with pytest.raises(BuildError, match="its header would have"):
        open_weights(_write(tmp_path, {"a": ENTRY}, length=length))


def test_a_type_that_is_no_float_is_named(tmp_path: Path) -> None:
    entry = {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}
    weights = open_weights(_write(tmp_path, {"a": entry}))
    with pytest.raises(BuildError, match=r"'a' has the type 'F8_E4M3'"):
        weights.read("a")
    with pytest.raises(BuildError, match="the weights have no tensor 'b'"):
        weights.read("b")


@given(st.binary(max_size=200))
@settings(max_examples=200)
def test_arbitrary_bytes_are_an_error_or_weights(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("weights")
    (folder / FILE).write_bytes(content)
    with contextlib.suppress(BuildError):
        open_weights(folder)
