"""Devices with committed models, and newer bundles to offer; only files and time."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from edgepack.bundle.keys import PrivateKey, PublicKey, generate_key, load_private_key
from edgepack.bundle.manifest import Firmware, Requirements
from edgepack.wire.orders import Desired, RunModel
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.world import World


@dataclass(frozen=True)
class Releases:
    """Shared bundles, and their signing key."""

    key: PrivateKey
    public_key: PublicKey
    one: ExampleBundle
    two: ExampleBundle
    three: ExampleBundle
    hooked: ExampleBundle
    arm: ExampleBundle
    foreign: ExampleBundle
    firm: ExampleBundle


FIRMWARE = Firmware(installer="sim", version="2.0", file="firmware/camera-2.0.img")


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
        firm=make_bundle(folder / "firm", key, release=2, firmware={FIRMWARE: b"image 2.0" * 9999}),
    )


@pytest.fixture
def fresh(tmp_path: Path, releases: Releases) -> World:
    """Return a device without any installation."""
    world = World(state_dir=tmp_path, keys=(releases.public_key,))
    for bundle in (
        releases.one,
        releases.two,
        releases.three,
        releases.hooked,
        releases.arm,
        releases.foreign,
        releases.firm,
    ):
        world.link.hold(bundle)
    world.models.start()
    return world


@pytest.fixture
def world(fresh: World, releases: Releases) -> World:
    """Return a device that serves release 1."""
    fresh.updater.orders.offer(releases.one.order(1))
    assert fresh.settle() == "COMMITTED"
    fresh.seen.clear()
    fresh.hooks_run.clear()
    fresh.probed.clear()
    return fresh


NAMES = ("det", "ocr", "tiny")


@dataclass(frozen=True)
class Shelf:
    """Two releases of each model, and another model."""

    first: dict[str, ExampleBundle]
    second: dict[str, ExampleBundle]
    other: ExampleBundle

    def desired(self, sequence: int, release: int = 1, *, soak_s: float = 0.0) -> Desired:
        bundles = self.first if release == 1 else self.second
        orders = {name: bundle.order(sequence, soak_s=soak_s) for name, bundle in bundles.items()}
        return Desired(sequence=sequence, models=dict(orders))

    def lie(self, name: str) -> RunModel:
        """Return an order for a model of that name without a bundle."""
        order = self.second["det"].order(2, expires_at=1.0)
        return replace(order, bundle=replace(order.bundle, name=name))


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory, releases: Releases) -> Shelf:
    folder, key = tmp_path_factory.mktemp("shelf"), releases.key

    def make(release: int) -> dict[str, ExampleBundle]:
        return {
            name: make_bundle(
                folder / f"{name}-{release}", releases.key, name=name, release=release
            )
            for name in NAMES
        }

    other = make_bundle(folder / "other", key, name="other")
    return Shelf(first=make(1), second=make(2), other=other)


def _device(folder: Path, releases: Releases, shelf: Shelf) -> World:
    world = World(state_dir=folder, keys=(releases.public_key,))
    for bundle in (*shelf.first.values(), *shelf.second.values(), shelf.other):
        world.link.hold(bundle)
    world.models.start()
    return world


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, releases: Releases, shelf: Shelf) -> World:
    """Return a device that runs the first release of all three, as a template."""
    world = _device(tmp_path_factory.mktemp("installed"), releases, shelf)
    world.models.take(shelf.desired(1))
    world.settle()
    return world


@pytest.fixture
def device(tmp_path: Path, installed: World, releases: Releases, shelf: Shelf) -> World:
    """Return a device that runs the first release of all three: a copy of the template."""
    shutil.copytree(installed.state_dir, tmp_path, symlinks=True, dirs_exist_ok=True)
    world = _device(tmp_path, releases, shelf)
    world.now = installed.now
    assert served(world) == {"det": 1, "ocr": 1, "tiny": 1}
    return world


def served(world: World) -> dict[str, int]:
    return {one.name: one.active.bundle.release for one in world.models if one.active}


def states(world: World) -> dict[str, str]:
    return {one.name: one.journal.state for one in world.models}


def slots(world: World) -> set[str]:
    return {path.name for path in (world.state_dir / "slots").iterdir()}
