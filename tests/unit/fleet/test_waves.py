"""Waves: parsing, and division of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgepack.errors import FleetError
from edgepack.fleet.rollouts.waves import choose_controls, divide_devices, parse_waves


@pytest.mark.parametrize("text", ["100%", "1,10%,100%", "1,5,50%,100%"])
def test_waves_are_read_in_their_order(text: str) -> None:
    units = {"percent": "%", "devices": ""}
    assert [f"{step.amount}{units[step.unit]}" for step in parse_waves(text)] == text.split(",")


@pytest.mark.parametrize(
    ("text", "problem", "remedy"),
    [
        ("", "wave '' is neither a number of devices nor a percentage", "--waves 1,10%,100%"),
        ("1,ten,100%", "wave 'ten' is neither", "--waves 1,10%,100%"),
        ("-1,100%", "wave '-1' is neither", "--waves 1,10%,100%"),
        ("0,100%", "at least 1 device", "--waves 1,10%,100%"),
        ("10%,101%", "at most 100%", "--waves 1,10%,100%"),
        ("50%,10%,100%", "waves must grow", "--waves 1,10%,100%"),
        ("5,5,100%", "waves must grow", "--waves 1,10%,100%"),
        ("1,10%", "the last wave must reach every device", "--waves 1,10%,100%"),
    ],
)
def test_waves_that_make_no_sense_are_refused_with_a_remedy(
    text: str, problem: str, remedy: str
) -> None:
    with pytest.raises(FleetError, match=problem) as refusal:
        parse_waves(text)
    assert refusal.value.remedy == remedy
    assert refusal.value.found_in == f"--waves {text}"


def test_devices_that_are_online_go_first() -> None:
    online = {f"d{i}": i == 7 for i in range(10)}
    waves = divide_devices(online, parse_waves("1,50%,100%"), "r1")
    assert waves["d7"] == 0
    assert sorted(waves.values()) == [0, 1, 1, 1, 1, 2, 2, 2, 2, 2]


def test_not_the_same_device_is_always_the_first() -> None:
    online = {f"d{i}": True for i in range(10)}
    steps = parse_waves("1,100%")
    first = {
        min(waves, key=lambda d: waves[d])
        for waves in (divide_devices(online, steps, f"r{i}") for i in range(20))
    }
    assert len(first) > 3


STEPS = st.sampled_from(["100%", "1,100%", "1,10%,100%", "3,50%,100%", "1,2,3,25%,100%"])


@given(online=st.dictionaries(st.text("abc", min_size=1), st.booleans(), min_size=1), text=STEPS)
def test_every_device_is_in_one_wave_and_no_wave_is_empty(
    online: dict[str, bool], text: str
) -> None:
    steps = parse_waves(text)
    waves = divide_devices(online, steps, "r1")
    assert waves.keys() == online.keys()
    assert set(waves.values()) == set(range(max(waves.values()) + 1))
    for index in range(max(waves.values()) + 1):
        addressed = sum(wave <= index for wave in waves.values())
        assert any(step.reach(len(online)) == addressed for step in steps)


@pytest.mark.parametrize(
    ("control", "of_a", "of_b"),
    [("", 0, 0), ("10%", 3, 1), ("12", 9, 3), ("1", 1, 0), ("100%", 30, 9), ("500", 30, 9)],
)
def test_controls_are_the_same_share_of_each_hardware_class(
    control: str, of_a: int, of_b: int
) -> None:
    class_of = {f"a{n}": "a" for n in range(30)} | {f"b{n}": "b" for n in range(10)}
    chosen = choose_controls(class_of, control, "r1")
    assert chosen == choose_controls(class_of, control, "r1")
    counts = [sum(name.startswith(kind) for name in chosen) for kind in "ab"]
    assert abs(counts[0] - of_a) <= 1
    assert sum(counts) == of_a + of_b, "one device at least is left for the waves"
    if 1 < len(chosen) < 30:
        assert chosen != choose_controls(class_of, control, "r2")
