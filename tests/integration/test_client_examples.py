"""The clients of `examples/clients` infer through twenty swaps of the model without a failure."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import sync_playwright

from edgepack.agent.state.pointer import ActivePointer
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.simulators.programs import require
from tests.simulators.waiting import wait_until
from tests.unit.agent_runtime.examples import install_model, make_inputs

CLIENTS = Path(__file__).parents[2] / "examples" / "clients"
SWAPS = 20
X = make_inputs(1)[0]["x"]
TENSOR = {"name": "x", "datatype": "FP32", "shape": list(X.shape), "data": X.ravel().tolist()}
BODY = json.dumps({"inputs": [TENSOR]})
RELEASES = [f"1.{number}.0" for number in range(1, SWAPS + 2)]


@pytest.fixture(scope="module")
def page_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, port: int, page_port: int
) -> Iterator[ModelServer]:
    origin = f"http://127.0.0.1:{page_port}"
    settings = (f'listen = "{port}"', f'origins = ["{origin}"]')
    server = ModelServer(tmp_path_factory.mktemp("server"), *settings)
    write_pointer(server.state_dir, install_model(server.state_dir, 1, scale=1.0))
    server.start()
    yield server
    assert server.stop() == 0, server.said()


@pytest.fixture(scope="module")
def pointers(server: ModelServer) -> list[ActivePointer]:
    """Return the pointers of all releases, whose slots are complete."""
    numbers = range(1, SWAPS + 2)
    return [install_model(server.state_dir, one, scale=float(one)) for one in numbers]


def swap_through(
    server: ModelServer, pointers: list[ActivePointer], seen: Callable[[], list[str]]
) -> None:
    """Switch to each release in turn, as soon as the client has an answer of the one before."""
    for number, pointer in enumerate(pointers):
        write_pointer(server.state_dir, pointer)
        wait_until(lambda number=number: RELEASES[number] in seen(), server.said)  # type: ignore[misc]


def _serving(server: ModelServer) -> str:
    version: str = server.ask("POST", "/v2/models/tiny/infer", BODY).value["model_version"]
    return version


def run_client(command: list[str], server: ModelServer, pointers: list[ActivePointer]) -> None:
    """Run a program through all swaps; fail if a request failed."""
    write_pointer(server.state_dir, pointers[0])
    wait_until(lambda: _serving(server) == RELEASES[0], server.said)
    words = [*command, str(server.path), "tiny", BODY]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines: list[str] = []
        assert process.stdout is not None
        output = process.stdout
        reader = threading.Thread(target=lambda: lines.extend(map(str.strip, output)))
        reader.start()
        swap_through(server, pointers, lambda: lines)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr is not None
        said = process.stderr.read()
        reader.join()
        assert process.wait() == 0, said
    assert lines[-SWAPS - 2 : -1] == RELEASES
    assert lines[-1].endswith(" answers, 0 failures")


def test_c_program_is_served_through_swaps(
    tmp_path: Path, server: ModelServer, pointers: list[ActivePointer]
) -> None:
    require("gcc")
    program = tmp_path / "client"
    flags = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    source = str(CLIENTS / "client.c")
    subprocess.run(["gcc", *flags, source, "-o", str(program)], check=True, capture_output=True)
    run_client([str(program)], server, pointers)


def test_node_client_is_served_through_swaps(
    server: ModelServer, pointers: list[ActivePointer]
) -> None:
    require("node")
    run_client(["node", str(CLIENTS / "client.mjs")], server, pointers)


class Pages(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def pages(page_port: int) -> Iterator[None]:
    """Serve the folder of the page, as `python -m http.server` does."""
    handler = functools.partial(Pages, directory=str(CLIENTS))
    with http.server.ThreadingHTTPServer(("127.0.0.1", page_port), handler) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield
        listening.shutdown()
        thread.join()


@pytest.mark.usefixtures("pages")
def test_page_of_an_allowed_origin_is_served_through_swaps_and_others_are_not(
    server: ModelServer, pointers: list[ActivePointer], port: int, page_port: int
) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        require("chromium")
    write_pointer(server.state_dir, pointers[0])
    asked = urlencode({"server": f"http://127.0.0.1:{port}", "model": "tiny", "body": BODY})
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        stranger = browser.new_page()
        stranger.goto(f"http://localhost:{page_port}/page.html?{asked}")
        stranger.wait_for_function("document.querySelector('#counts').textContent")
        shown = stranger.text_content("#counts")
        assert shown is not None
        answers, failures = (int(word) for word in shown.split() if word.isdecimal())
        assert answers == failures
        stranger.close()
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{page_port}/page.html?{asked}")
        swap_through(server, pointers, lambda: page.locator("#versions li").all_text_contents())
        page.click("#stop")
        page.wait_for_function("document.title == 'stopped'")
        assert page.locator("#versions li").all_text_contents() == RELEASES
        counts = page.text_content("#counts")
        browser.close()
    assert counts is not None
    assert counts.endswith(" answers, 0 failures")
