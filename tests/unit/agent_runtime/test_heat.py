"""Signs of heat in the kernel's files, laid out as a folder."""

from pathlib import Path

import pytest

from edgepack.agent.telemetry.heat import HeatWatch

ZONE = "class/thermal/thermal_zone0"
COOLING = "class/thermal/cooling_device0"
COUNTER = "devices/system/cpu/cpu0/thermal_throttle/core_throttle_count"
PI = "devices/platform/soc/soc:firmware/get_throttled"
BOARD = {
    f"{ZONE}/type": "x86_pkg_temp",
    f"{ZONE}/temp": "50000",
    f"{ZONE}/trip_point_0_temp": "95000",
    f"{ZONE}/trip_point_0_type": "passive",
    f"{COOLING}/type": "thermal-cpufreq-0",
    f"{COOLING}/cur_state": "0",
    COUNTER: "7",
    PI: "50000",
}


def lay_out(root: Path, changes: dict[str, str]) -> None:
    for name, text in changes.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({}, ()),
        ({f"{ZONE}/temp": "96000"}, ("x86_pkg_temp", "96 °C", "95 °C")),
        ({f"{ZONE}/temp": "96000", f"{ZONE}/trip_point_0_type": "active"}, ()),  # a fan
        ({f"{ZONE}/trip_point_0_temp": "-274000"}, ()),  # a trip point that is off
        ({f"{ZONE}/temp": "none"}, ()),
        ({f"{COOLING}/cur_state": "2"}, ("thermal-cpufreq-0", "2")),
        ({f"{COOLING}/cur_state": "2", f"{COOLING}/type": "pwm-fan"}, ()),
        ({COUNTER: "9"}, ("cpu0", "2 more")),
        ({COUNTER: "0"}, ()),  # the counter began again
        ({PI: "50004"}, ("0x50004",)),
    ],
)
def test_signs_of_heat(tmp_path: Path, changes: dict[str, str], facts: tuple[str, ...]) -> None:
    lay_out(tmp_path, BOARD)
    watch = HeatWatch(tmp_path)
    assert watch.look() == ""
    lay_out(tmp_path, changes)
    sign = watch.look()
    assert bool(sign) == bool(facts)
    assert all(fact in sign for fact in facts)


def test_a_sign_holds_for_a_minute_and_a_board_without_sensors_has_none(tmp_path: Path) -> None:
    now = 0.0
    assert HeatWatch(tmp_path / "nothing").look() == ""
    lay_out(tmp_path, BOARD)
    watch = HeatWatch(tmp_path, lambda: now)
    lay_out(tmp_path, {COUNTER: "8"})
    assert watch.look()
    now = 59.0
    assert watch.look()
    now = 60.0
    assert watch.look() == ""
