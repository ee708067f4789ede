"""Effect of a coded message on a device: the only missing chunk, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.agent.broker.link import BrokerLink
from edgepack.agent.transfer.download import Download
from edgepack.wire.coded import CodedChunk, pack_coded, read_coded
from edgepack.wire.need_bitmap import pack_missing
from edgepack.wire.transfers import Need
from tests.unit.agent.conftest import Releases
from tests.unit.agent.test_daemon import MemoryPublisher
from tests.unit.agent.test_download import cut, model_entry, open_download

Spoil = Callable[[CodedChunk], tuple[tuple[int, ...], bytes]]


def coded(chunks: list[bytes], *members: int) -> CodedChunk:
    return read_coded(pack_coded(9, {index: chunks[index] for index in members}))


def lacks(download: Download) -> tuple[int, ...]:
    return download.missing()[0].chunks if download.missing() else ()


@pytest.fixture
def chunks(releases: Releases) -> list[bytes]:
    return cut(releases, model_entry(releases))


def having(folder: Path, releases: Releases, chunks: list[bytes], *indices: int) -> Download:
    download = open_download(folder, releases)
    for index in indices:
        assert download.accept(model_entry(releases).sha256, index, chunks[index]) == "new"
    return download


def test_chunks_differ_in_length(chunks: list[bytes]) -> None:
    assert len(set(map(len, chunks))) > 1, "the tests here show less than they should"


def test_each_chunk_of_a_file_comes_out_of_a_message_with_all_the_others(
    tmp_path: Path, releases: Releases, chunks: list[bytes]
) -> None:
    entry, everything = model_entry(releases), range(len(chunks))
    for index in everything:
        (tmp_path / str(index)).mkdir()
        others = [other for other in everything if other != index]
        download = having(tmp_path / str(index), releases, chunks, *others)
        assert download.accept_coded(entry.sha256, coded(chunks, *everything)) == "new"
        assert download.is_complete
        download.finish()
        path = tmp_path / str(index) / "slots" / releases.two.ref.digest / entry.path
        assert path.read_bytes() == b"".join(chunks)


def test_of_a_message_with_none_or_several_that_lack_nothing_is_kept(
    tmp_path: Path, releases: Releases, chunks: list[bytes]
) -> None:
    sha256 = model_entry(releases).sha256
    download = having(tmp_path, releases, chunks, 0, 1)
    before = lacks(download)
    assert download.accept_coded(sha256, coded(chunks, 0, 1)) == "duplicate"
    assert download.accept_coded(sha256, coded(chunks, 0, 2, 3)) == "unsolved"
    assert lacks(download) == before
    assert download.accept_coded(sha256, coded(chunks, 0, 2)) == "new"
    assert download.accept_coded(sha256, coded(chunks, 0, 2, 3)) == "new"
    download.close()


@pytest.mark.parametrize(
    ("spoil", "outcome"),
    [
        (lambda it: (it.members, b"\1" + it.content[1:]), "bad"),
        (lambda it: (it.members, it.content[:-1]), "bad"),
        (lambda it: (it.members, it.content + b"\0"), "bad"),
        (lambda it: (it.members, b"x"), "bad"),
        (lambda it: ((0, 3), it.content), "bad"),
        (lambda it: ((0, 2**32), it.content), "unwanted"),
        (lambda it: ((2**32, 2**32 + 511), it.content), "unwanted"),
    ],
)
def test_a_message_that_lies_gives_nothing_and_the_next_one_is_solved(
    tmp_path: Path, releases: Releases, chunks: list[bytes], spoil: Spoil, outcome: str
) -> None:
    sha256 = model_entry(releases).sha256
    download = having(tmp_path, releases, chunks, 0, 1)
    right = coded(chunks, 0, 2)
    members, content = spoil(right)
    before = lacks(download)
    wrong = CodedChunk(number=1, members=members, content=content)
    assert download.accept_coded(sha256, wrong) == outcome
    assert download.accept_coded("0" * 64, right) == "unwanted"
    assert lacks(download) == before
    assert download.accept_coded(sha256, right) == "new"
    download.close()


def test_a_chunk_that_rotted_on_the_disk_spoils_no_other(
    tmp_path: Path, releases: Releases, chunks: list[bytes]
) -> None:
    entry = model_entry(releases)
    download = having(tmp_path, releases, chunks, 0, 1)
    path = tmp_path / "slots" / releases.two.ref.digest / entry.path
    with path.open("r+b") as file:
        file.write(b"\xff\xff")
    assert download.accept_coded(entry.sha256, coded(chunks, 0, 2)) == "bad"
    assert download.accept_coded(entry.sha256, coded(chunks, 1, 2)) == "new"
    download.close()


def test_a_device_takes_coded_chunks_of_the_files_that_the_broker_lets_through() -> None:
    publisher = MemoryPublisher(coded=frozenset({"aa" * 32}))
    asked = [pack_missing(name * 32, (0,), 2) for name in ("aa", "bb")]
    link = BrokerLink(publisher)
    link.ask(Need(digest="d", files=tuple(replace(file, takes_coded=True) for file in asked)))
    ((_, need, _),) = publisher.sent
    assert isinstance(need, Need)
    assert [file.takes_coded for file in need.files] == [True, False]
