"""Any network faults on chunks and needs cost time, and little else."""

from pathlib import Path

import pytest

from edgepack.bandwidth import parse_bandwidth
from tests.simulators.lossy_channel import START_S, Faults, LossyFleet

SIZE_BYTES = 2_000_000


def cost(fleet: LossyFleet) -> float:
    """Return the bytes sent by the depot, in files."""
    return sum(fleet.depot.sent_bytes.values()) / SIZE_BYTES


@pytest.mark.parametrize("devices", [1, 10, 50])
def test_without_loss_the_depot_sends_the_file_once_for_all(tmp_path: Path, devices: int) -> None:
    fleet = LossyFleet(tmp_path, devices)
    fleet.run(30)
    fleet.check_files()
    assert cost(fleet) <= 1.1


@pytest.mark.parametrize(
    "faults",
    [
        Faults(loss=0.2),
        Faults(duplication=0.5),
        Faults(reorder=0.5),
        Faults(loss=0.2, duplication=0.2, reorder=0.2),
        Faults(queue_bytes=200_000),
    ],
    ids=["20 % loss", "duplication", "reordering", "all of it", "a broker that keeps three chunks"],
)
@pytest.mark.parametrize("devices", [1, 8])
def test_a_bad_network_costs_time_alone(tmp_path: Path, faults: Faults, devices: int) -> None:
    fleet = LossyFleet(tmp_path, devices, faults=faults)
    fleet.run(120)
    fleet.check_files()


def test_of_what_many_lost_each_lacks_little_and_still_says_how_far_it_is(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 60, size_bytes=8_000_000, faults=Faults(loss=0.05))
    fleet.run(6)
    fleet.check_files()


@pytest.mark.parametrize(("devices", "most"), [(10, 1.2), (60, 1.3)])
def test_what_each_of_many_loses_for_itself_costs_little(
    tmp_path: Path, devices: int, most: float
) -> None:
    fleet = LossyFleet(tmp_path, devices, size_bytes=8_000_000, faults=Faults(loss=0.05))
    fleet.run(60)
    fleet.check_files()
    assert fleet.depot.sent_bytes["coded"] > 0
    assert sum(fleet.depot.sent_bytes.values()) / 8_000_000 <= most


def test_older_devices_and_such_that_the_broker_gives_no_coded_messages_get_all(
    tmp_path: Path,
) -> None:
    faults = Faults(loss=0.05)
    fleet = LossyFleet(
        tmp_path, 12, size_bytes=8_000_000, faults=faults, plain=(0, 1, 2), refusing=(3, 4)
    )
    fleet.run(60)
    fleet.check_files()
    by_name = {one.name: one.coded["new"] for one in fleet.receivers}
    assert not any(by_name[f"d{number}"] for number in range(5))
    assert all(by_name[f"d{number}"] for number in range(5, 12))


def test_what_is_twice_or_mixed_up_on_its_way_is_not_sent_twice(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 8, faults=Faults(duplication=0.5))
    fleet.run(30)
    assert cost(fleet) <= 1.1


@pytest.mark.parametrize("keeps_queues", [True, False])
def test_a_broker_that_restarts_in_the_middle(tmp_path: Path, keeps_queues: bool) -> None:
    fleet = LossyFleet(tmp_path, 4, size_bytes=8_000_000)
    while not fleet.sent_bytes:
        fleet.step()
    fleet.is_up = False
    for _ in range(200):
        fleet.step()
    fleet.is_up = True
    fleet.restart_broker(keeps_queues=keeps_queues)
    fleet.run(60)
    fleet.check_files()


def test_a_depot_that_restarts_in_the_middle_of_a_wave_goes_on(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 6, size_bytes=8_000_000)
    while fleet.sent_bytes < 3_000_000:
        fleet.step()
    lacking = fleet.missing()
    fleet.start_depot()
    fleet.run(60)
    fleet.check_files()
    sent = sum(fleet.depot.sent_bytes.values())
    assert sent <= max(lacking.values()) * 65536 * 1.3, "only what was lacking is sent again"


def test_one_slow_device_slows_no_other(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    alone = LossyFleet(tmp_path / "a", 9, size_bytes=4_000_000)
    alone.run(60)
    time_s = max(one.done_at or 0 for one in alone.receivers) - START_S
    fleet = LossyFleet(tmp_path / "b", 10, size_bytes=4_000_000, slow={9: 300_000})
    fleet.run(60, until_done=9)
    fast = fleet.receivers[:9]
    assert all(one.done_at for one in fast)
    assert max(one.done_at or 0 for one in fast) - START_S <= 1.2 * time_s
    fleet.run(120)
    fleet.check_files()


def test_a_device_that_falls_asleep_is_waited_for_no_longer_than_a_moment(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 2, size_bytes=16_000_000)
    while fleet.receivers[1].download.progress < 0.2:
        fleet.step()
    fleet.receivers[1].is_asleep = True
    fleet.run(30, until_done=1)
    fleet.receivers[1].is_asleep = False
    fleet.run(60)
    fleet.check_files()


def test_the_queue_of_a_slow_device_stays_small_at_the_broker(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 1, size_bytes=30_000_000, slow={0: 2_000_000})
    fleet.run(60)
    assert fleet.receivers[0].most_queued_bytes < 30_000_000
    assert cost(fleet) * SIZE_BYTES <= 30_000_000 * 1.05


def test_devices_that_come_late_share_what_they_missed(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 40, spread_s=4.0)
    fleet.run(60)
    fleet.check_files()
    assert cost(fleet) <= 2.1, "once for the first ones, once for all others"


def test_the_depot_sends_no_more_a_second_than_it_may(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 3, bandwidth=parse_bandwidth("500kB/s"))
    fleet.run(30)
    took_s = max(one.done_at or 0 for one in fleet.receivers) - START_S
    assert took_s >= 0.85 * SIZE_BYTES / 500_000
    fleet.check_files()


def test_a_device_with_a_limit_is_served_alone_and_within_it(tmp_path: Path) -> None:
    fleet = LossyFleet(tmp_path, 4, limits={0: parse_bandwidth("400kB/s")})
    fleet.run(60)
    limited, *others = fleet.receivers
    assert (limited.done_at or 0) - START_S >= 0.85 * SIZE_BYTES / 400_000
    assert max(one.done_at or 0 for one in others) - START_S < 2.0
    assert cost(fleet) <= 2.1
    fleet.check_files()
