"""A real agent without metadata from its broker fetches metadata from the fleet, and updates."""

import getpass
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgepack.fleet.documents.rollouts import Selector
from tests.integration.fleet.conftest import Mosquitto, Serve
from tests.integration.fleet.test_identity import running_agent

RULES = """\
topic readwrite ep/#
topic deny ep/1/default/meta/#
topic deny ep/1/default/d/cam-1/dn/meta/#
"""


def test_an_agent_updates_though_its_broker_withholds_all_metadata(
    serve: Serve, release: Callable[..., Path], tmp_path: Path
) -> None:
    rules = tmp_path / "acl"
    rules.write_text(RULES)
    user = f"user {getpass.getuser()}"  # Who may read the rules.
    broker = Mosquitto(tmp_path, "allow_anonymous true", f"acl_file {rules}", user).start()
    try:
        fleet: Any = serve("--broker", broker.url)
        etc = tmp_path / "cam-1"
        config = fleet.client.enroll("cam-1", group="g", folder=etc, state_dir=etc / "state").config
        settings = config.read_text()
        config.write_text(settings + f'metadata = "{fleet.url}/tuf/metadata"\n')
        with running_agent(config) as log:
            fleet.wait_until(lambda: fleet.info().online == 1, "the agent is online")
            name = fleet.roll_out(
                release(1), to=Selector(kind="group", group="g"), deadline_s=400.0
            )
            view = fleet.wait_for(name, "FINISHED", "PAUSED")
            assert view.counts == {"COMMITTED": 1}, log.read_text()
    finally:
        broker.stop()
