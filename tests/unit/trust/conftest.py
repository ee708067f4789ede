"""A repository with real keys, and bundles that were signed by one."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey, generate_key, load_private_key, write_key_pair
from edgepack.bundle.manifest import Requirements
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.repository import RepositoryWorld


@dataclass(frozen=True)
class Shelf:
    """Bundles of two models, all signed by one key; `two` carries a delta from `one`."""

    key: PrivateKey
    one: ExampleBundle
    two: ExampleBundle
    other: ExampleBundle
    arm: ExampleBundle


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    folder = tmp_path_factory.mktemp("shelf")
    private, _ = write_key_pair(generate_key(), folder / "build")
    key = load_private_key(private)
    one = make_bundle(folder / "one", key, release=1)
    return Shelf(
        key=key,
        one=one,
        two=make_bundle(folder / "two", key, release=2, tuned_from=one),
        other=make_bundle(folder / "other", key, release=1, name="ocr-small"),
        arm=make_bundle(folder / "arm", key, release=3, requires=Requirements(arch=("aarch64",))),
    )


@pytest.fixture
def world(tmp_path: Path) -> RepositoryWorld:
    return RepositoryWorld(tmp_path / "tuf")
