"""The effect of an action is stated in whole sentences, for a single device and for several."""

from collections.abc import Mapping

from msgspec.structs import replace

from edgepack.fleet.dashboard.acts import MEANINGS
from edgepack.fleet.documents.rollouts import RolloutView
from tests.unit.fleet.test_printing import ROLLOUT


def standing(counts: Mapping[str, int]) -> RolloutView:
    return replace(ROLLOUT, counts=dict(counts), wave=1, wave_counts=(dict(counts),))


def test_one_device_is_told_of_as_one() -> None:
    one = standing({"WAITING": 1, "WORKING": 1, "COMMITTED": 1})
    assert MEANINGS["pause"](one) == (
        "1 device that waits will not be offered the release.",
        "1 device that has it under way goes on.",
        "1 device that committed it keeps it. It can be resumed at any time.",
    )
    assert MEANINGS["abort"](one)[0] == (
        "1 device that has not committed it is told to stay with what it ran before."
    )


def test_several_devices_are_told_of_as_several() -> None:
    several = standing({"WAITING": 2, "SILENT": 2, "COMMITTED": 2})
    assert MEANINGS["abort"](several) == (
        "2 devices that have not committed it are told to stay with what they ran before.",
        "2 devices that wait will never be offered it.",
        "2 devices that committed it keep it; a rollback takes it back.",
        "An aborted rollout cannot be resumed.",
    )
