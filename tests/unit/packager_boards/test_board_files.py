"""Files are sent to a board once, by content, and the oldest folders are removed."""

from pathlib import Path

import onnx
from onnx import helper

from edgepack.packager.boards.address import parse_address
from edgepack.packager.boards.board_process import BoardFiles
from edgepack.packager.boards.link import Link
from tests.unit.packager_io.models import save_with_external_data, small_cnn


class NotingLink(Link):
    """A connection that notes what is sent and removed."""

    def __init__(self) -> None:
        super().__init__(parse_address("ssh://board"), None, "token")
        self.folder = "/board"
        self.sent: list[str] = []
        self.removed: list[str] = []

    def put(self, path: str, source: Path) -> None:
        """Note a file."""
        self.sent.append(path)

    def remove(self, path: str) -> None:
        """Note a folder."""
        self.removed.append(path)


def _model(path: Path, name: str) -> Path:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    node = helper.make_node("Identity", ["x"], ["y"], name=name)
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    path.parent.mkdir(exist_ok=True)
    onnx.save(helper.make_model(helper.make_graph([node], "g", [value], [out])), path)
    return path


def test_model_is_sent_with_its_external_data_and_only_once(tmp_path: Path) -> None:
    files = BoardFiles(link := NotingLink())
    model = save_with_external_data(small_cnn(), tmp_path / "model.onnx")
    (tmp_path / "other.onnx").touch()
    path = files.send_model(model)
    folder = path.removeprefix("/board/").removesuffix("/model.onnx")
    assert sorted(link.sent) == [f"{folder}/model.onnx", f"{folder}/weights.bin"]
    assert files.send_model(model) == path
    assert len(link.sent) == 2, "equal content is there already"
    files.forget()
    files.send_model(model)
    assert len(link.sent) == 4, "a new connection has an empty folder"


def test_changed_file_of_equal_name_is_another_folder(tmp_path: Path) -> None:
    files = BoardFiles(NotingLink())
    first = files.send_model(_model(tmp_path / "model.onnx", "first"))
    assert files.send_model(_model(tmp_path / "model.onnx", "second node")) != first


def test_folder_that_was_used_longest_ago_is_removed(tmp_path: Path) -> None:
    files = BoardFiles(link := NotingLink())
    sent = [files.send_model(_model(tmp_path / f"{n}" / "m.onnx", f"node {n}")) for n in range(6)]
    files.send_model(tmp_path / "0" / "m.onnx")
    assert link.removed == []
    files.send_model(_model(tmp_path / "6" / "m.onnx", "node 6"))
    assert [f"/board/{path}/m.onnx" for path in link.removed] == [sent[1]]
