"""The dashboard in a real browser, from an operator's view: start, breach, reason, roll back."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from edgepack.fleet.documents.devices import ModelView
from edgepack.fleet.documents.rollouts import Selector
from tests.integration.fleet.conftest import FleetProcess, MakeBundle, Serve, Simulate

CAMERAS = Selector(kind="group", group="cameras")
GOOD, BAD = 6, 3
REASON = "golden outputs differ: nrmse 0.83 > 0.05 (simulated)"
PATIENCE_MS = 60_000


@pytest.fixture
def fleet(serve: Serve, simulation: Simulate, make_bundle: MakeBundle) -> FleetProcess:
    """Return nine cameras, three of these always fail; 1.0.0 is rolled out, 1.1.0 is ready."""
    running = serve()
    simulation(running, count=GOOD, group="cameras", prefix="good")
    simulation(running, count=BAD, group="cameras", prefix="bad", fail_rate=1.0)
    first = running.roll_out(make_bundle("1.0.0", 1), CAMERAS, max_failed_share=1.0)
    running.wait_for(first, "FINISHED")
    running.client.publish(make_bundle("1.1.0", 2))
    return running


def opened(browser: Browser, fleet: FleetProcess, width: int, scheme: str) -> BrowserContext:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    context.set_default_timeout(PATIENCE_MS)
    context.new_page().goto(fleet.client.login_link().url)
    return context


def test_an_operator_starts_a_rollout_sees_it_stop_finds_the_reason_and_takes_it_back(
    browser: Browser, fleet: FleetProcess
) -> None:
    expect.set_options(timeout=PATIENCE_MS)
    context = opened(browser, fleet, 1280, "light")
    (page,) = context.pages
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    # Start.
    page.get_by_role("link", name="Rollouts", exact=True).click()
    page.get_by_role("link", name="Start a rollout").click()
    page.get_by_label("Release", exact=True).select_option(index=0)
    page.get_by_role("combobox", name="Group").fill("cameras")
    page.get_by_label("Waves").fill("100%")
    page.get_by_role("textbox", name="Soak").fill("0.2")
    page.get_by_label("Smallest sample").fill(str(GOOD + BAD))
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_text("replaces digits 1.0.0")).to_be_visible()
    expect(page.get_by_label("What the gates find")).to_contain_text("2.5 % is not promised")
    page.get_by_role("button", name="Start rollout").click()
    # Watch it move and stop by itself: the page is not loaded again.
    page.evaluate("window.isTheSamePage = true")
    tag = page.locator("h1 .tag")
    expect(tag).to_have_text("PAUSED")
    expect(page.get_by_role("region", name="Table of gates")).to_contain_text("breach")
    expect(page.locator("#live")).to_contain_text(f"{GOOD} committed")
    assert page.evaluate("window.isTheSamePage") is True
    # The reason: one click to the first page, one to the device.
    page.goto(fleet.url)
    needs = page.locator(".needs")
    expect(needs).to_contain_text("3 of 9 decided devices")
    needs.get_by_role("link", name="bad-1").click()
    expect(page.locator(".needs .because")).to_have_text(REASON)
    # Roll back.
    page.goto(f"{fleet.url}/rollouts/r2")
    page.get_by_role("link", name="Roll back").click()
    expect(page.get_by_text("Devices leave digits 1.1.0")).to_be_visible()
    page.get_by_role("button", name="Roll back r2").click()
    expect(page.locator("h1")).to_contain_text("r3")
    expect(tag).to_have_text("FINISHED")
    context.close()
    assert wrong == []
    assert {model.active.version for model in models(fleet) if model.active} == {"1.0.0"}
    acts = [entry.action for entry in fleet.client.audit() if entry.actor == "token"]
    assert {"rollout.start", "rollout.rollback"} <= set(acts)


def models(fleet: FleetProcess) -> list[ModelView]:
    return [model for device in fleet.client.devices() for model in device.models]


def pages(fleet: FleetProcess) -> Iterator[str]:
    digest = fleet.rollout("r1").bundle.digest
    yield from ("/", "/devices", "/devices/bad-1", "/devices/good-1", "/rollouts", "/rollouts/r1")
    yield from (
        "/rollouts/r1/rollback",
        "/models",
        "/models/digits",
        "/devices?where=x",
        "/nothing",
    )
    yield from (f"/rollouts/new?release={digest}&to=group&group=cameras&look=1", "/login")


def test_pages_fit_and_are_usable_by_everybody(browser: Browser, fleet: FleetProcess) -> None:
    wrong = []
    for width, scheme, paper in (
        (1280, "light", "rgb(247, 247, 244)"),
        (400, "dark", "rgb(20, 23, 26)"),
    ):
        context = opened(browser, fleet, width, scheme)
        (page,) = context.pages
        for path in pages(fleet):
            page.goto(fleet.url + path)
            found = Axe().run(page)
            if found.violations_count:
                wrong.append((path, width, found.generate_report()))
            wrong += [(path, width, one) for one in sticks_out(page)]
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
        context.close()
    assert wrong == []


def sticks_out(page: Page) -> list[str]:
    """Return elements wider than the screen that do not scroll by themselves."""
    found: list[str] = page.evaluate(
        """() => {
          const room = document.documentElement.clientWidth;
          return [...document.querySelectorAll("body *")].filter(one => {
            const box = one.getBoundingClientRect();
            return box.width > 1 && box.right > room + 1 && !one.closest(".scroll, svg");
          }).map(one => one.tagName + "." + one.className);
        }"""
    )
    return found


def test_the_keyboard_is_enough_and_stays_where_it_was(
    browser: Browser, fleet: FleetProcess
) -> None:
    context = opened(browser, fleet, 1280, "light")
    (page,) = context.pages
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    link = "document.activeElement.getAttribute('href')"
    where = page.evaluate(link)
    assert where.startswith("/devices/bad-"), "the first thing that needs a person"
    fleet.client.move_devices(["good-1"], "doors")
    fleet.client.remove_devices(["good-2"])
    expect(page.locator(".numbers a").first).to_contain_text("8", timeout=PATIENCE_MS)
    assert page.evaluate(link) == where, "what moved did not take it away"
    context.close()
