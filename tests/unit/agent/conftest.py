"""A device with a committed model, and a newer bundle to offer it; nothing but files and time."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from edgepack.bundle.keys import PrivateKey, PublicKey, generate_key, load_private_key
from edgepack.bundle.manifest import Requirements
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.world import World


@dataclass(frozen=True)
class Releases:
    """Bundles that are made once, and the key that signed them."""

    key: PrivateKey
    public_key: PublicKey
    one: ExampleBundle
    two: ExampleBundle
    three: ExampleBundle
    hooked: ExampleBundle
    arm: ExampleBundle
    foreign: ExampleBundle


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    folder = tmp_path_factory.mktemp("releases")

    def new_key(name: str) -> PrivateKey:
        path = folder / name
        path.write_bytes(generate_key().private_pem)
        return load_private_key(path)

    key, foreign = new_key("release.key"), new_key("foreign.key")
    return Releases(
        key=key,
        public_key=key.public_key(),
        one=make_bundle(folder / "one", key, release=1),
        two=make_bundle(folder / "two", key, release=2, variants=("cpu", "cpu-vnni")),
        three=make_bundle(folder / "three", key, release=3),
        hooked=make_bundle(
            folder / "hooked", key, release=4, hooks={"staged.after.d/10-x": "#!/bin/sh\n"}
        ),
        arm=make_bundle(folder / "arm", key, release=5, requires=Requirements(arch=("aarch64",))),
        foreign=make_bundle(folder / "foreign", foreign, release=6),
    )


@pytest.fixture
def fresh(tmp_path: Path, releases: Releases) -> World:
    """A device on which nothing was ever installed."""
    world = World(state_dir=tmp_path, keys=(releases.public_key,))
    for bundle in (
        releases.one,
        releases.two,
        releases.three,
        releases.hooked,
        releases.arm,
        releases.foreign,
    ):
        world.link.hold(bundle)
    world.models.start()
    return world


@pytest.fixture
def world(fresh: World, releases: Releases) -> World:
    """A device that serves release 1."""
    fresh.updater.offer(releases.one.order(1))
    assert fresh.settle() == "COMMITTED"
    fresh.seen.clear()
    fresh.hooks_run.clear()
    fresh.probed.clear()
    return fresh
