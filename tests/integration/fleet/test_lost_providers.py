"""Devices that lose a provider, or get a driver that computes nothing: another variant takes over,
the fleet hears the reason, and the dashboard shows the reason in a browser. Real agents notice
changes of their Python environment while they run.
"""

from pathlib import Path

from playwright.sync_api import Browser, expect

from edgepack.bundle.archive import pack
from edgepack.bundle.keys import load_private_key
from edgepack.fleet.documents.rollouts import Selector
from edgepack.wire.reports import Watched
from tests.integration.fleet.conftest import FleetProcess, Mosquitto, Serve, StartAgent
from tests.simulators.bundles import make_bundle
from tests.simulators.manifests import CPU
from tests.simulators.own_site import OwnSite
from tests.simulators.waiting import PATIENCE_S, wait_until

QNN = "QNNExecutionProvider"
SETTINGS = f"\n[providers]\nwanted = '{QNN}'\nallow_simulator = true\n"
REASONS = {
    "uninstalled": f"{QNN}: none instead of",
    "driver": "driver qnn-sdk: 9.9.9 instead of",
}


def test_lost_provider_and_broken_driver_are_healed_and_shown_on_the_dashboard(
    mosquitto: Mosquitto,
    serve: Serve,
    start_agent: StartAgent,
    browser: Browser,
    key_prefix: Path,
    tmp_path: Path,
) -> None:
    fleet: FleetProcess = serve("--broker", mosquitto.url)
    sites = {device: OwnSite(tmp_path / f"{device}-site") for device in REASONS}
    for device, site in sites.items():
        place = tmp_path / device
        fleet.client.enroll(device, group="npus", folder=place, state_dir=place / "state")
        with (place / "agent.toml").open("a") as settings:
            settings.write(SETTINGS)
        start_agent(fleet, device, python=site.python)
    bundle = make_bundle(
        tmp_path / "tiny",
        load_private_key(key_prefix.with_suffix(".key")),
        variants=("qnn", "cpu"),
        provider={"qnn": QNN, "cpu": CPU},
    )
    pack(bundle.folder, archive := tmp_path / "tiny-1.1.0.edgepack")
    fleet.wait_until(lambda: fleet.info().online == len(REASONS), "the agents are online")
    npus = Selector(kind="group", group="npus")
    fleet.wait_for(fleet.roll_out(archive, to=npus, waves="100%"), "FINISHED")
    assert {fleet.client.device(device).models[0].variant for device in REASONS} == {"qnn"}
    sites["uninstalled"].uninstall_qnn()
    sites["driver"].break_qnn()

    def told(device: str) -> Watched:
        return fleet.client.device(device).models[0].watch or Watched()

    page = browser.new_context().new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    expect.set_options(timeout=1000 * PATIENCE_S)
    page.goto(fleet.client.login_link().url)
    for device, reason in REASONS.items():
        wait_until(lambda d=device: told(d).state == "DEGRADED", lambda d=device: told(d))  # type: ignore[misc]
        now = told(device)
        assert (now.symptom, now.wanted, now.chosen) == ("basis", "qnn of 1.1.0", "cpu of 1.1.0")
        assert reason in now.because
        page.goto(fleet.url)
        expect(page.locator(".needs")).to_contain_text(reason)
        page.goto(f"{fleet.url}/devices/{device}")
        expect(page.locator("main")).to_contain_text(reason)
        expect(page.locator("main")).to_contain_text("Wanted: qnn of 1.1.0")
    page.context.close()
