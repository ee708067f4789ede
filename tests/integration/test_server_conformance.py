"""The model server judged by Triton's client, and by requests made up from its own description."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgepack.agent.server.operations import OPERATIONS
from tests.simulators.model_server import ModelServer
from tests.simulators.pointers import write_pointer
from tests.simulators.ports import free_port
from tests.unit.agent_runtime.examples import install_model


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, port: int, grpc_port: int
) -> Iterator[ModelServer]:
    addresses = f'listen = "{port}"', f'grpc = "{grpc_port}"'
    server = ModelServer(tmp_path_factory.mktemp("server"), *addresses)
    write_pointer(server.state_dir, install_model(server.state_dir, 1, scale=1.0))
    server.start()
    yield server
    assert "Traceback" not in server.said()
    assert server.stop() == 0


def run(*words: str, folder: Path | None = None) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_tritons_client_works_with_all_that_the_server_has(server: ModelServer, port: int) -> None:
    said = run(sys.executable, "-m", "tests.conformance.triton_client", f"127.0.0.1:{port}")
    assert said == "conforms\n"


def test_tritons_grpc_client_works_with_all_that_the_server_has(
    server: ModelServer, grpc_port: int
) -> None:
    address = f"127.0.0.1:{grpc_port}"
    assert (
        run(sys.executable, "-m", "tests.conformance.triton_grpc_client", address) == "conforms\n"
    )


def test_server_does_as_its_description_says(
    server: ModelServer, port: int, tmp_path: Path
) -> None:
    program = str(Path(sys.executable).with_name("schemathesis"))
    said = run(
        *(program, "run", f"http://127.0.0.1:{port}/v2/openapi.json"),
        *("--no-color", "--workers", "1", "--seed", "1", "--max-examples", "4"),
        *("--phases", "coverage,fuzzing"),
        # What is accepted depends on the model, not on the form of a request alone.
        *("--exclude-checks", "positive_data_acceptance"),
        folder=tmp_path,
    )
    # The path of the description itself is left out.
    assert f"Tested: {len(OPERATIONS) - 1}" in said
    assert server.ask("GET", "/v2/health/live").status == 200
