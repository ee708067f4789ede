"""Frozen state folders and messages of the current version; see `freeze.py`.

The key that signs the bundles is thrown away.
"""

import gzip
import io
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from edgepack.agent.broker.report import make_report
from edgepack.agent.runtime.verdicts import ProbeCacheKey, Verdicts
from edgepack.agent.telemetry.buffer import TelemetryBuffer
from edgepack.agent.telemetry.spool import Spooled, spool_folder, write_spooled
from edgepack.agent.update.journal import JOURNAL
from edgepack.bundle.keys import generate_key, load_private_key, load_public_key, write_key_pair
from edgepack.wire.batches import Received, Session
from edgepack.wire.histogram import LatencyRecorder
from edgepack.wire.messages import WIRE_VERSION, Message, encode
from edgepack.wire.orders import Certificate, Desired
from edgepack.wire.reports import Changes, ProbeResult, Reported
from edgepack.wire.telemetry import Telemetry
from edgepack.wire.transfers import Need, NeedFile
from tests.simulators import bundles
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.signing import CERTIFICATE, KEY, RawSigner, sign_with
from tests.simulators.world import PowerCutError, World, hook_says

HERE = Path(__file__).parent
WIDTH = 16


def freeze_states() -> None:
    """Write the state folders of agents in four states, and a message of each kind."""
    archive = HERE / "states" / f"{JOURNAL.version}.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    bundles.WIDTH = WIDTH  # Small, since it is kept for ever.
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        private, public = write_key_pair(generate_key(), folder / "release")
        key = load_private_key(private)
        private.unlink()
        made = {
            title: make_bundle(folder / "made" / title, key, name=title[:3], release=int(title[4:]))
            for title in ("det-9", "ocr-6", "ocr-7", "ocr-8")
        }
        worlds = {
            state: make_world(folder / "corpus" / state, made, state)
            for state in ("committed", "downloading", "soaking", "rolling_back")
        }
        note_latencies(worlds["committed"].state_dir, made["ocr-7"])
        shutil.copytree(made["ocr-8"].folder, folder / "corpus" / "bundles" / "ocr-8")
        shutil.copy(public, folder / "corpus" / "release.pub")
        write_messages(worlds["committed"], made["ocr-7"])
        pack(folder / "corpus", archive)


def make_world(folder: Path, made: dict[str, ExampleBundle], state: str) -> World:
    """Make a device that committed det 9, ocr 6 and ocr 7, and is updating to ocr 8."""
    folder.mkdir(parents=True)
    key = load_public_key(folder.parents[1] / "release.pub")
    world = World(state_dir=folder, keys=(key,), model="ocr")
    for bundle in made.values():
        world.link.hold(bundle)
    world.models.start()
    for sequence, title in enumerate(("det-9", "ocr-6", "ocr-7"), 1):
        bundle = made[title]
        order = bundle.order(sequence)
        world.models.take(Desired(sequence=sequence, models={bundle.ref.name: order}))
        world.settle()
    if state == "committed":
        return world
    if state == "rolling_back":
        world.hook_answers["activating.after"] = [hook_says("refuse", "too hot")]
    world.updater.orders.offer(made["ocr-8"].order(4, soak_s=1.0))
    if state == "downloading":
        while world.journal.state != "DOWNLOADING":
            world.models.advance()
            world.link.deliver(world.models)
            world.now += 0.2
        world.models.advance()
        world.models.suspend()
        return world

    def cut(reached: str) -> None:
        if reached == state.upper():
            raise PowerCutError

    world.on_move = cut
    try:
        world.settle()
    except PowerCutError:
        return world
    raise AssertionError(f"{state} was not reached")


def note_latencies(state_dir: Path, bundle: ExampleBundle) -> None:
    """Write latencies of an application and a probe."""
    write_spooled(
        state_dir,
        Spooled(
            token="0123456789abcdef",
            pid=1,
            model=bundle.ref.name,
            digest=bundle.ref.digest,
            variant="cpu",
            provider="CPUExecutionProvider",
            since=1.0,
            written_at=2.0,
            latency=latencies().snapshot(),
        ),
    )
    TelemetryBuffer(state_dir).commit(seals=False)
    shutil.rmtree(spool_folder(state_dir).resolve())
    spool_folder(state_dir).unlink()
    Verdicts(state_dir).keep(
        ProbeCacheKey(
            digest=bundle.ref.digest,
            variant="cpu",
            provider="CPUExecutionProvider",
            provider_version="",
            runtime="1.31.1",
            drivers={},
            hardware="example",
            threads=0,
            system="example",
        ),
        ProbeResult(
            variant="cpu", provider="CPUExecutionProvider", right=True, because="cosine 1.0"
        ),
    )


def latencies() -> LatencyRecorder:
    """Return five inferences."""
    recorder = LatencyRecorder()
    for _ in range(5):
        recorder.record(2.0)
    return recorder


def write_messages(world: World, bundle: ExampleBundle) -> None:
    folder = HERE / "messages" / str(WIRE_VERSION)
    folder.mkdir(parents=True, exist_ok=True)
    order = bundle.order(3, soak_s=2.0, expires_at=4e9)
    said: dict[str, Message] = {
        "desired": Desired(sequence=3, models={bundle.ref.name: order}),
        "reported": make_report(world.models, (), sequence=3, boot="b", at=1e6),
        "changes": Changes(at=1e6, changes={"sequence": msgspec.Raw(b"4")}),
        "reported-will": Reported(online=False, at=1e6, boot="b"),
        "event": world.journal.outbox[-1],
        "telemetry": Telemetry(
            digest=bundle.ref.digest,
            variant="cpu",
            provider="CPUExecutionProvider",
            window_start=1.0,
            window_s=5.0,
            latency=latencies().snapshot(),
            failures=1,
        ),
        "need": Need(
            digest=bundle.ref.digest,
            files=(NeedFile(sha256="0" * 64, chunk_count=3, missing=zlib.compress(b"\x05")),),
        ),
    }
    said["certificate"] = Certificate(certificate=CERTIFICATE)
    said["received"] = Received(journal="j", until=7, newest=7)
    said["session"] = Session(boot="b", session="c1")
    signer = RawSigner(tenant="t", device="cam-1", boot="b", sign=sign_with(KEY))
    signer.accept(Session(boot="b", session="c1"))
    for name, message in said.items():
        (folder / f"{name}.json").write_bytes(encode(message) + b"\n")
    (folder / "batch.json").write_bytes(signer.sign_raw("event", encode(said["event"])))
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    (folder / "batch.pub").write_bytes(pem)


def pack(folder: Path, archive: Path) -> None:
    """Write an archive of the folder, without times and owners."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(folder)))
            entry.mtime = entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            with path.open("rb") if path.is_file() else io.BytesIO() as file:
                tar.addfile(entry, file if path.is_file() else None)
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=0))
