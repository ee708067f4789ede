"""A damaged release of the controller is reported with its damage, after any number of retries."""

from pathlib import Path

import pytest

from edgepack.bundle.trust import TrustPolicy
from edgepack.errors import FleetError
from edgepack.fleet.releases.fetching import Wanted, fetch_release
from edgepack.fleet.releases.folder import ReleaseDamagedError, ReleaseFolder

_DIGEST = "ab" * 32


def test_a_retry_names_the_damage_and_not_the_last_message(tmp_path: Path) -> None:
    folder = ReleaseFolder(tmp_path / "releases", tmp_path / "incoming")
    place = tmp_path / "releases" / _DIGEST
    place.mkdir()
    damage = ReleaseDamagedError("'model.onnx' has changed", release=_DIGEST, found_in=str(place))
    folder.set_aside(damage)
    wanted = Wanted(digest=_DIGEST, name="m", title="m 1.0.0", source="", most_bytes=1)
    for _ in range(3):
        with pytest.raises(FleetError) as refused:
            fetch_release(wanted, folder, TrustPolicy(keys=()), lambda: False)
        assert refused.value.problem.count("are damaged") == 1
        folder.problems[_DIGEST] = f"a controller cannot get m 1.0.0: {refused.value.problem}"
