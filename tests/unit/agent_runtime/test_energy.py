"""Energy of a device, from folders as the kernel shows them."""

import errno
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.energy import LONGEST_S, EnergyMeter
from edgepack.agent.telemetry.heat import HeatWatch
from edgepack.agent.telemetry.record import Record
from edgepack.durable import write_file
from tests.simulators.manifests import CPU

COOLING = "class/thermal/cooling_device0"
HOT: dict[str, object] = {f"{COOLING}/type": "thermal-cpufreq-0", f"{COOLING}/cur_state": 1}
COOL: dict[str, object] = {f"{COOLING}/cur_state": 0}
PACKAGE = "class/powercap/intel-rapl:0"
MOST = 262143328850


def put(folder: Path, files: Mapping[str, object]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{content}\n")


def rapl(zone: str, name: str, count: int) -> dict[str, object]:
    path = f"class/powercap/{zone}"
    return {f"{path}/name": name, f"{path}/energy_uj": count, f"{path}/max_energy_range_uj": MOST}


def rail(chip: str, number: int, name: str, volts: int, amperes: int) -> dict[str, object]:
    path = f"class/hwmon/{chip}"
    found: dict[str, object] = {f"{path}/in{number}_label": name} if name else {}
    return found | {f"{path}/in{number}_input": volts, f"{path}/curr{number}_input": amperes}


def battery(status: str, **files: object) -> dict[str, object]:
    files |= {"type": "Battery", "status": status}
    return {f"class/power_supply/BAT0/{name}": content for name, content in files.items()}


@pytest.mark.parametrize(
    ("files", "source", "power_w"),
    [
        ({}, "", None),
        ({"class/hwmon/hwmon0/power1_input": 2500000}, "hwmon", 2.5),
        ({"class/hwmon/hwmon0/power1_average": 7000000}, "hwmon", 7.0),
        ({"class/hwmon/hwmon0/power1_input": "unknown"}, "", None),
        # Two rails of an INA3221, and the sum of shunt voltages that the chip offers, too.
        (
            rail("hwmon1", 1, "VDD_GPU_SOC", 5000, 400)
            | rail("hwmon1", 2, "VDD_CPU_CV", 5000, 200)
            | rail("hwmon1", 4, "", 3, 600),
            "hwmon",
            3.0,
        ),
        # A Jetson's rail that feeds the others.
        (
            rail("hwmon1", 1, "VDD_IN", 5000, 1000) | rail("hwmon1", 2, "VDD_SOC", 5000, 200),
            "hwmon",
            5.0,
        ),
        (battery("Discharging", power_now=4000000), "battery", 4.0),
        (battery("Discharging", voltage_now=12000000, current_now=500000), "battery", 6.0),
        (battery("Charging", power_now=4000000), "", None),
    ],
)
def test_power_is_added_up_over_time(
    tmp_path: Path, files: Mapping[str, object], source: str, power_w: float | None
) -> None:
    put(tmp_path, files)
    now = [100.0]
    meter = EnergyMeter(tmp_path, lambda: now[0])
    meter.begin()
    for _ in range(3):
        now[0] += 5.0
        meter.look()
    assert meter.source == source
    assert meter.energy_j == (None if power_w is None else pytest.approx(15.0 * power_w))


def test_counters_of_packages_wrap_and_parts_of_packages_do_not_count(tmp_path: Path) -> None:
    put(tmp_path, rapl("intel-rapl:0", "package-0", MOST - 1_000_000))
    put(tmp_path, rapl("intel-rapl:1", "psys", 5) | rapl("intel-rapl:0:0", "core", 5))
    put(tmp_path, {"class/hwmon/hwmon0/power1_input": 99000000})
    now = [100.0]
    meter = EnergyMeter(tmp_path, lambda: now[0])
    assert meter.energy_j is None, "the time before the start is not known"
    meter.begin()
    for count in (MOST - 500_000, 499_999, 2_499_999):
        now[0] += 500.0
        put(tmp_path, {f"{PACKAGE}/energy_uj": count, "class/powercap/intel-rapl:1/energy_uj": 9})
        meter.look()
    assert meter.source == "RAPL"
    assert meter.energy_j == pytest.approx(3.5)


def test_energy_of_an_unknown_time_is_unknown_until_the_next_window(tmp_path: Path) -> None:
    put(tmp_path, {"class/hwmon/hwmon0/power1_input": 2000000})
    now = [100.0]
    meter = EnergyMeter(tmp_path, lambda: now[0])
    for wait_s, files in (
        (LONGEST_S + 1, {}),
        (5.0, rapl("intel-rapl:0", "package-0", 7)),
        (5.0, {f"{PACKAGE}/energy_uj": MOST // 2}),
        (5.0, {f"{PACKAGE}/energy_uj": "broken"}),
    ):
        meter.begin()
        now[0] += 5.0
        meter.look()
        assert meter.energy_j is not None
        put(tmp_path, files)
        for elapsed_s in (wait_s, 5.0):
            now[0] += elapsed_s
            meter.look()
            assert meter.energy_j is None


def test_releases_share_the_energy_of_a_window_by_their_time(tmp_path: Path) -> None:
    now = [100.0]
    put(tmp_path / "sys", {"class/hwmon/hwmon0/power1_input": 3000000})
    state_dir, is_full = tmp_path / "state", [False]
    state_dir.mkdir()

    def write(path: Path, content: bytes) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_file(path, content, lasting=False)

    buffer = TelemetryBuffer(state_dir, write=write)
    buffer.energy = EnergyMeter(tmp_path / "sys", lambda: now[0])
    buffer.heat = HeatWatch(tmp_path / "sys", lambda: now[0])
    records = [
        Record(state_dir, model="m", digest=digit * 64, variant="cpu", provider=CPU)
        for digit in "12"
    ]

    def run(*counts: int) -> None:
        for record, count in zip(records, counts, strict=True):
            for _ in range(count):
                record.latency.record(10.0)
        now[0] += 10.0

    run(10, 20)
    buffer.commit(seals=False)  # The window before the start may be longer.
    run(10, 20)
    put(tmp_path / "sys", HOT)
    buffer.heat.look()
    buffer.commit(seals=False)
    run(0, 1)
    put(tmp_path / "sys", COOL)
    buffer.heat.look()
    is_full[0] = True
    with pytest.raises(OSError, match="No space"):
        buffer.commit(seals=False)
    run(0, 3)
    is_full[0] = False
    buffer.commit(seals=False)
    told = [(one.digest[0], one.energy_j, one.metered) for one in buffer.journal.stored.windows]
    assert told == [
        ("1", None, 0),
        ("2", None, 0),
        ("1", pytest.approx(10.0), 10),
        ("2", pytest.approx(20.0), 20),
        ("2", pytest.approx(60.0), 4),
    ]
    hot_s = [one.throttled_s for one in buffer.journal.stored.windows]
    assert hot_s == [0, 0, 20, 20, 0]
    totals = {one.digest[0]: one.sums for one in buffer.totals}
    assert totals["2"].energy_j == pytest.approx(80.0)
    assert totals["2"].throttled_s == 20
    assert buffer.energy.total_j == pytest.approx(3 * 40)
    assert buffer.energy.power_w == pytest.approx(3)
    for record in records:
        record.latency.close()
