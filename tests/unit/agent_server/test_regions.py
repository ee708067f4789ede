"""Shared memory of clients that shrink it, name what is not theirs, or lie about its size."""

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgepack.agent.inference_protocol.messages import (
    InferRequest,
    InputTensor,
    RegionStatus,
    RegisterRequest,
    TensorParameters,
)
from edgepack.agent.server.blocks import Blocks
from edgepack.agent.server.http_messages import HttpError
from edgepack.agent.server.inferring import decode_inputs
from edgepack.agent.server.peers import find_peer_uid
from edgepack.agent.server.regions import (
    FOLDER,
    MAX_REGIONS,
    MAX_USERS,
    Regions,
)
from edgepack.agent.serving.served_bound import _share

OWN, OTHER = os.getuid(), 12345


@pytest.fixture
def memory() -> Iterator[Path]:
    path = FOLDER / f"edgepack-test-{secrets.token_hex(8)}"
    path.write_bytes(bytes(range(100)))
    path.chmod(0o600)
    yield path
    path.unlink()


@pytest.fixture
def regions() -> Iterator[Regions]:
    regions = Regions(Blocks())
    yield regions
    for uid in (OWN, OTHER, None):
        regions.unregister("", uid)


def place(offset: int, length: int, name: str = "r") -> TensorParameters:
    return TensorParameters(
        shared_memory_region=name, shared_memory_offset=offset, shared_memory_byte_size=length
    )


def asked(memory: Path, length: int = 90, offset: int = 10) -> RegisterRequest:
    return RegisterRequest(key=f"/{memory.name}", byte_size=length, offset=offset)


def test_region_is_read_and_written_at_its_place(regions: Regions, memory: Path) -> None:
    regions.register("r", asked(memory), OWN)
    assert bytes(regions.read(place(5, 4), OWN)) == bytes([15, 16, 17, 18])
    regions.write(place(0, 3), memoryview(b"abc"), OWN)
    assert memory.read_bytes()[9:14] == bytes([9, 97, 98, 99, 13])
    status = RegionStatus(name="r", key=f"/{memory.name}", offset=10, byte_size=90)
    assert regions.statuses("", OWN) == regions.statuses("r", OWN) == [status]
    regions.unregister("r", OWN)
    regions.unregister("r", OWN)
    with pytest.raises(HttpError, match="no shared memory region 'r'"):
        regions.read(place(0, 1), OWN)


def test_region_that_shrinks_or_grows_is_an_error_of_the_request(
    regions: Regions, memory: Path
) -> None:
    regions.register("r", asked(memory), OWN)
    os.truncate(memory, 50)
    for act in (
        lambda: regions.read(place(0, 90), OWN),
        lambda: regions.write(place(0, 90), memoryview(bytes(90)), OWN),
    ):
        with pytest.raises(HttpError, match="shorter than registered"):
            act()
    assert memory.stat().st_size == 50
    assert len(regions.read(place(0, 40), OWN)) == 40
    memory.unlink()
    memory.write_bytes(b"")
    assert len(regions.read(place(0, 40), OWN)) == 40


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, 91), (90, 1), (2**62, 1), (0, 2**63), (1, -1)]
)
def test_places_outside_of_a_region_are_rejected(
    regions: Regions, memory: Path, offset: int, length: int
) -> None:
    regions.register("r", asked(memory), OWN)
    with pytest.raises(HttpError, match="has 90 bytes"):
        regions.read(place(offset, length), OWN)


def test_output_that_is_longer_than_its_place_is_rejected(regions: Regions, memory: Path) -> None:
    regions.register("r", asked(memory), OWN)
    with pytest.raises(HttpError, match="an output has 4 bytes, its shared memory 3"):
        regions.write(place(0, 3), memoryview(b"abcd"), OWN)


@pytest.mark.parametrize(
    "key", ["", "/", "..", "/../etc/passwd", "a/b", "/no-such-thing", "x\0y", "x" * 300, "\ud800"]
)
def test_key_that_names_no_shared_memory_is_rejected(regions: Regions, key: str) -> None:
    with pytest.raises(HttpError, match="shared memory") as caught:
        regions.register("r", RegisterRequest(key=key, byte_size=1), OWN)
    assert caught.value.status == 400


def test_links_and_folders_are_no_shared_memory(regions: Regions, memory: Path) -> None:
    link = memory.with_name(memory.name + "-link")
    folder = memory.with_name(memory.name + "-folder")
    link.symlink_to("/etc/passwd")
    folder.mkdir()
    try:
        for path in (link, folder):
            with pytest.raises(HttpError, match="shared memory"):
                regions.register("r", asked(path, 1, 0), OWN)
    finally:
        link.unlink()
        folder.rmdir()


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 5), (0, 0), (0, -1), (0, 101), (100, 1), (2**63, 1)]
)
def test_size_that_the_object_does_not_have_is_rejected(
    regions: Regions, memory: Path, offset: int, length: int
) -> None:
    with pytest.raises(HttpError, match=r"shorter than stated|offset is 0 or more"):
        regions.register("r", asked(memory, length, offset), OWN)


def test_users_have_regions_of_their_own(regions: Regions, memory: Path) -> None:
    """The server may read more than its clients: a client must not read through the server."""
    regions.register("r", asked(memory), OWN)
    for uid in (OTHER, None):
        with pytest.raises(HttpError, match="belongs to another user") as caught:
            regions.register("r", asked(memory), uid)
        assert caught.value.status == 403
        with pytest.raises(HttpError, match="no shared memory region"):
            regions.read(place(0, 1), uid)
        regions.unregister("", uid)
        assert regions.statuses("", uid) == []
    memory.chmod(0o604)
    regions.register("r", asked(memory), OTHER)
    assert bytes(regions.read(place(0, 1), OTHER)) == bytes([10])
    with pytest.raises(HttpError, match="may only be read"):
        regions.write(place(0, 1), memoryview(b"x"), OTHER)
    assert len(regions.statuses("", OWN)) == 1


def test_number_of_regions_is_limited(regions: Regions, memory: Path) -> None:
    memory.chmod(0o606)
    for number in range(MAX_REGIONS):
        regions.register(f"{number}", asked(memory), OWN)
    with pytest.raises(HttpError, match="at most"):
        regions.register("more", asked(memory), OWN)
    with pytest.raises(HttpError, match="is registered already"):
        regions.register("0", asked(memory), OWN)
    for uid in range(MAX_USERS - 1):
        regions.register("r", asked(memory), 20000 + uid)
    with pytest.raises(HttpError, match="at most"):
        regions.register("r", asked(memory), OTHER)
    for uid in range(MAX_USERS - 1):
        regions.unregister("r", 20000 + uid)


@pytest.mark.parametrize(("datatype", "is_fixed"), [("FP32", False), ("INT32", True)])
def test_indices_in_sealed_memory_do_not_change_after_their_check(
    regions: Regions, datatype: str, is_fixed: bool
) -> None:
    file, arrays = _share({"x": np.zeros(4, np.int32)})
    region = regions.adopt(file, OWN)
    os.close(file)
    tensor = InputTensor(
        name="x", datatype=datatype, shape=[4], parameters=place(0, 16, region.name)
    )
    found = decode_inputs(
        InferRequest(inputs=[tensor]), lambda _, size: memoryview(b""), lambda: OWN, regions
    )
    arrays["x"][...] = -1
    assert found.feeds["x"].any() == (not is_fixed)
    assert not found.feeds["x"].flags.writeable or is_fixed
    with pytest.raises(HttpError, match="may only be read"):
        regions.write(place(0, 1, region.name), memoryview(b"x"), OWN)
    with pytest.raises(HttpError, match="has 64 bytes"):
        regions.read(place(0, 65, region.name), OWN)
    regions.unregister(region.name, OWN)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_user_of_a_loopback_client_is_found(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listening:
        with socket.create_connection(listening.getsockname()[:2]) as client:
            peer, ends = listening.accept()[0], client.getsockname()
            with peer:
                assert find_peer_uid(ends, listening.getsockname()) == OWN
        assert find_peer_uid((address, 1), listening.getsockname()) is None
