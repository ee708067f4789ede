"""Pictures through a real model server: the answers of an application, and bad files."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from edgepack.agent import DeviceError, PictureError, open_model
from edgepack.agent.state.pointer import read_pointer
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.documented import install_documented
from tests.unit.agent_runtime.examples import install_model
from tests.unit.pictures.drawn import encoded, noise
from tests.unit.pictures.test_hostile_pictures import png_of_size

IMAGE = "/v2/models/defects/image"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    folder = tmp_path_factory.mktemp("server")
    server = ModelServer(folder, "body_bytes = 2000000")
    write_pointer(server.state_dir, install_documented(server.state_dir, folder))
    write_pointer(server.state_dir, install_model(server.state_dir, 1, scale=1.0, name="plain"))
    server.start()
    yield server
    assert "Traceback" not in server.said()
    assert server.stop() == 0, server.said()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP"])
def test_a_picture_gets_the_answer_of_an_application_to_the_last_bit(
    form: str, server: ModelServer
) -> None:
    content = encoded(noise(50, 30), form)
    with open_model("defects", server.state_dir, threads=1) as model:
        labels, version = model.classify(content), model.bundle.version
    for path in (IMAGE, f"/v2/models/defects/versions/{version}/image"):
        found = server.ask("POST", path, content)
        assert found.status == 200
        answer = found.value
        assert answer["labels"] == json.loads(msgspec.json.encode(labels))
        assert (answer["width"], answer["height"]) == (50, 30)
        assert (answer["model_name"], answer["model_version"]) == ("defects", version)


def test_metadata_state_the_meaning_of_inputs_and_labels(server: ModelServer) -> None:
    described = server.ask("GET", "/v2/models/defects").value["parameters"]["description"]
    assert described["inputs"][0]["mean"] == [0.5]
    assert described["parts"][0]["class_names"][1] == "dent"


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        (IMAGE, b"not a picture", "cannot be read as an image"),
        (IMAGE, b"", "cannot be read as an image"),
        (IMAGE, png_of_size(100_000, 100_000), "pixels"),
        (IMAGE, encoded(noise(60, 60), "JPEG")[:900], "cannot be read as an image"),
        ("/v2/models/plain/image", encoded(noise(9, 9)), "describes no preparation of pictures"),
    ],
)
def test_bad_pictures_are_refused_and_others_are_served(
    path: str, content: bytes, words: str, server: ModelServer
) -> None:
    refused = server.ask("POST", path, content)
    assert refused.status == 400
    assert words in refused.value["error"]
    assert "\n" not in refused.value["error"]
    assert server.ask("POST", IMAGE, Path(server.state_dir.parent / "part.png").read_bytes())
    assert server.ask("POST", "/v2/models/absent/image", content).status == 404
    assert server.ask("POST", IMAGE, b"\0" * 2_000_001).status == 413


def test_a_served_model_answers_as_the_model_in_the_process(server: ModelServer) -> None:
    picture = encoded(noise(31, 40))
    with (
        open_model("defects", server.state_dir, threads=1) as own,
        open_model("defects", server.state_dir, via="server") as served,
    ):
        assert served.description == own.description
        assert served.classify(picture, top=2) == own.classify(picture, top=2)
        assert served.run_image(picture).labels == own.run_image(picture).labels
        with pytest.raises(ValueError, match=r"`detect` needs .* this one gives classes"):
            served.detect(picture)
        with pytest.raises(PictureError, match="cannot be read as an image"):
            served.classify(b"")


def test_an_update_between_preparation_and_inference_mixes_no_releases(
    server: ModelServer,
) -> None:
    picture = encoded(noise(31, 40))
    older = read_pointer(server.state_dir, "defects")
    assert older is not None
    with open_model("defects", server.state_dir, threads=1) as own:
        old, described = own.classify(picture), own.description
    (part,) = described.parts
    other = replace(part, class_names=tuple(f"new {name}" for name in part.class_names))
    described = replace(described, parts=(other,))
    newer = install_model(server.state_dir, 2, scale=-1.0, name="defects", description=described)
    with open_model("defects", server.state_dir, via="server") as served:
        answers = {served.classify(picture)}

        def has_changed() -> bool:
            answers.add(served.classify(picture))
            return len(answers) == 2

        write_pointer(server.state_dir, newer)
        wait_until(has_changed)
        answers |= {served.classify(picture) for _ in range(5)}
        write_pointer(server.state_dir, older)
        wait_until(lambda: served.classify(picture) == old)
    assert len(answers) == 2
    (new,) = answers - {old}
    assert all(label.name.startswith("new ") for label in new)
    assert [label.score for label in new] != [label.score for label in old]


def test_a_release_that_changes_during_each_question_is_an_error(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_model("defects", server.state_dir, via="server") as served:
        facts = served._facts()
        gone = replace(facts, bundle=replace(facts.bundle, version="0.0.0"))
        monkeypatch.setattr(served, "_facts", lambda: gone)
        with pytest.raises(DeviceError, match="changed 5 times during a question"):
            served.classify(encoded(noise(31, 40)))


def test_a_question_that_an_update_with_other_inputs_overtakes_is_asked_again(
    server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = encoded(noise(31, 40))
    with open_model("defects", server.state_dir, via="server") as served:
        answer, ask = served.classify(picture), served._facts
        facts = ask()
        old = replace(
            facts,
            bundle=replace(facts.bundle, version="0.0.0"),
            inputs=tuple(replace(one, name="before") for one in facts.inputs),
            description=replace(
                facts.description,
                inputs=tuple(replace(one, name="before") for one in facts.description.inputs),
            ),
        )
        asked = iter([old])
        monkeypatch.setattr(served, "_facts", lambda: next(asked, None) or ask())
        assert served.classify(picture) == answer
    assert "0.0.0" not in server.said()
