"""Effect of a rollout on each device, previewed before the start, and rejections."""

import pytest
from msgspec.structs import replace

from edgepack.bundle.manifest import BundleFacts, Manifest, Requirements
from edgepack.errors import FleetError
from edgepack.fleet.documents.previews import RolloutPreview
from edgepack.fleet.documents.releases import full_title, tell_apart
from edgepack.fleet.documents.rollouts import RolloutSettings, Selector
from edgepack.fleet.documents.wording import finding_lines
from edgepack.fleet.releases.publish import check_identity
from edgepack.fleet.rollouts import membership
from edgepack.wire.orders import BundleRef
from tests.simulators.manifests import DIGEST, QNN, make_variant
from tests.simulators.world import make_facts
from tests.unit.fleet.world import NEW, OLD, World, says

ALL = Selector(kind="all")
BEFORE = BundleRef(name="digits", version="0.9.0", release=0, digest="00" * 32)


def look_ahead(
    world: World,
    bundle: BundleRef,
    *,
    waves: str = "100%",
    control: str = "",
    manifest: Manifest | None = None,
) -> RolloutPreview:
    settings = RolloutSettings(waves=waves, control=control)
    with world.store.reading() as session:
        return membership.show_preview(session, bundle, ALL, settings, manifest)


def test_a_preview_says_what_a_rollout_means_to_whom(world: World) -> None:
    for number in range(1, 12):
        world.enroll(f"cam-{number}")
    for number in range(1, 6):
        world.hear(f"cam-{number}", says("IDLE", active=OLD))
    world.hear("cam-6", says("IDLE", active=NEW))
    found = look_ahead(world, NEW, waves="1,50%,100%")
    assert found.waves == (1, 5, 5)
    assert found.counts == {"adds": 5, "replaces": 5, "nothing": 1}
    assert [(part.outcome, part.examples, part.runs) for part in found.parts] == [
        ("adds", ("cam-7", "cam-8", "cam-9"), None),
        ("replaces", ("cam-1", "cam-2", "cam-3"), OLD),
        ("nothing", ("cam-6",), NEW),
    ]
    assert found.refusal == ""
    with world.store.reading() as session:
        assert session.connection().exec_driver_sql("SELECT * FROM rollouts").all() == []


def test_a_preview_states_the_least_change_that_gates_find(world: World) -> None:
    for number in range(12):
        world.enroll(f"cam-{number}")
        world.hear(f"cam-{number}", replace(says("IDLE", active=OLD), facts=make_facts()))
    held = look_ahead(world, NEW, waves="1,100%", control="50%")
    assert held.waves == (1, 5, 6)
    assert [(one.devices, one.controls) for one in held.finds] == [(1, 11), (6, 6)]
    alone, six = (one.least for one in held.finds)
    assert 1.5 < alone < 1.7
    assert 1.3 < six < 1.5
    (line,) = finding_lines(held.finds)
    assert line.startswith(f"p95 of {make_facts().hardware_class}: {alone:.2f} x on 1 device with")
    assert line.endswith("on 6 devices with 6 controls (noise 0.055)")
    *_, warned = finding_lines(look_ahead(world, NEW, waves="1,100%").finds)
    assert warned.startswith("without controls 2.5 % is not promised")
    assert "--control 10%" in warned
    new = look_ahead(world, replace(NEW, name="other", digest="03" * 32))
    assert new.finds == (), "there is nothing to compare with"


def test_an_older_release_than_serves_is_refused_and_the_way_back_is_named(world: World) -> None:
    for name, bundle in (("a", NEW), ("b", OLD)):
        world.enroll(name)
        world.hear(name, says("IDLE", active=bundle))
    assert look_ahead(world, OLD).counts == {"nothing": 1, "refused": 1}
    with pytest.raises(FleetError) as refusal:
        world.start(OLD)
    assert str(refusal.value).splitlines() == [
        "1 of 2 devices cannot take digits 1.0.0 (010101010101): "
        "release 1 is older than release 2 that serves there",
        "  found in: devices a",
        "  try: edgepack rollout rollback digits@2.0.0 --group g",
    ]


def test_an_older_release_than_was_once_committed_is_refused_with_a_number_that_is_not(
    world: World,
) -> None:
    world.enroll("a")
    world.start(NEW)
    world.look()
    world.hear("a", says("COMMITTED", 1, active=NEW))
    world.hear("a", says("IDLE", 0, active=BEFORE))
    found = look_ahead(world, OLD)
    assert found.refusal.endswith(
        "release 1 is older than digits 2.0.0 (020202020202), once committed there"
    )
    assert found.remedy == "edgepack build --release 3, or a higher number"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"release": 3},
            "the fleet holds another content of digits 2.0.0: digits 2.0.0 (020202020202), "
            "and this one is digits 2.0.0 (777777777777)",
        ),
        (
            {"version": "2.0.1"},
            "release 2 of digits is another version's in this fleet: "
            "digits 2.0.0 (020202020202), and this one is digits 2.0.1 (777777777777)",
        ),
    ],
)
def test_another_content_under_an_identity_that_is_held_is_refused(
    world: World, changes: dict[str, object], problem: str
) -> None:
    other = replace(NEW, digest="77" * 32, **changes)
    world.enroll("a")
    with pytest.raises(FleetError) as refusal:
        look_ahead(world, other)
    assert refusal.value.problem == problem
    with world.store.reading() as session:
        check_identity(session, NEW)
        check_identity(session, replace(other, name="letters"))


def test_a_rollout_of_another_model_does_not_stand_in_the_way(world: World) -> None:
    world.enroll("a")
    world.start(NEW)
    assert look_ahead(world, NEW).counts == {"refused": 1}
    letters = BundleRef(name="letters", version="1.0.0", release=1, digest="03" * 32)
    assert look_ahead(world, letters).counts == {"adds": 1}


def test_twelve_digits_stand_where_two_versions_could_be_confused() -> None:
    other = replace(OLD, digest="33" * 32)
    assert full_title(OLD) == "digits 1.0.0 (010101010101)"
    assert tell_apart([OLD, NEW])(OLD) == "digits 1.0.0"
    assert tell_apart([OLD, NEW, other])(other) == "digits 1.0.0 (333333333333)"
    assert tell_apart([OLD, NEW, other])(NEW) == "digits 2.0.0"


def test_devices_that_no_variant_fits_are_named_with_the_reason(world: World) -> None:
    avx2 = Requirements(arch=("x86_64",), runtime=">=1.31,<1.40")
    manifest = Manifest(
        facts=BundleFacts(
            name="digits", version="2.0.0", release=2, source_sha256=DIGEST, files=()
        ),
        variants=(
            make_variant("npu", provider=QNN, device="npu"),
            make_variant("avx2", requires=avx2, degraded=True),
        ),
    )
    x86 = make_facts()
    facts = {
        "fits-1": x86,
        "unknown-1": None,
        "arm-1": make_facts(arch="aarch64"),
        "arm-2": make_facts(arch="aarch64"),
        "old-1": replace(x86, runtime="1.20.1"),
        "old-2": replace(x86, runtime=""),
        "new-1": replace(x86, runtime="1.40.0"),
        "arm-9": replace(make_facts(arch="armv7l"), runtime="1.20.1"),
        "played-1": replace(make_facts(arch="z80"), agent_version="simulated"),
    }
    for name, said in facts.items():
        world.enroll(name)
        world.hear(name, replace(says("IDLE"), facts=said))
    world.hear("fits-1", replace(says("IDLE", active=OLD), facts=x86))
    found = look_ahead(world, NEW, manifest=manifest)
    assert found.counts == {"adds": 2, "replaces": 1, "unfit": 6}
    assert found.refusal == "", "it may be started: devices know best"
    assert [(part.devices, part.examples, part.because) for part in found.parts[2:]] == [
        (
            3,
            ("arm-1", "arm-2", "arm-9"),
            "no variant fits their hardware and providers (arm-1: npu: QNNExecutionProvider is "
            "unknown here; avx2: it is for x86_64, this device is aarch64)",
        ),
        (
            3,
            ("new-1", "old-1", "old-2"),
            "the release is for other versions of ONNX Runtime (new-1: avx2: it needs onnxruntime "
            ">=1.31,<1.40, this device has 1.40.0)",
        ),
    ]


def test_what_serves_already_and_what_is_refused_is_said_before_what_would_not_fit(
    world: World,
) -> None:
    manifest = Manifest(
        facts=BundleFacts(
            name="digits", version="1.0.0", release=1, source_sha256=DIGEST, files=()
        ),
        variants=(make_variant(requires=Requirements(arch=("z80",))),),
    )
    for name, active in (("a", OLD), ("b", NEW)):
        world.enroll(name)
        world.hear(name, replace(says("IDLE", active=active), facts=make_facts()))
    assert look_ahead(world, OLD, manifest=manifest).counts == {"nothing": 1, "refused": 1}
