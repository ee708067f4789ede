"""Every parser of bytes that others made: valid inputs, how it reads, and what it may raise."""

import base64
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from edgepack.agent.broker.inbox import Arrived
from edgepack.agent.enrolment.identity import judge_certificate
from edgepack.agent.enrolment.package import Package, read_package, write_package
from edgepack.agent.runtime.verdicts import VERDICTS_FILE, Verdicts
from edgepack.agent.state.captured import (
    SETTINGS_FILE,
    CaptureSettings,
    Dropped,
    captured_folder,
    dropped_samples,
    note_dropped,
    read_capture,
    switch_capture,
)
from edgepack.agent.state.decryption_key import KEY_PLACE_FILE, read_key_file, write_key_file
from edgepack.agent.state.outages import JOURNAL_FILE, describe_outage
from edgepack.agent.state.pointer import POINTER_FILE, read_pointer
from edgepack.agent.state.release_counters import COUNTERS_FILE, ReleaseCounters
from edgepack.agent.state.slots import Slots
from edgepack.agent.state.uploads import Uploads, uploads_file
from edgepack.agent.telemetry.spool import read_spooled
from edgepack.agent.update.journal import JournalStore, read_journal
from edgepack.agent.update.status import read_status
from edgepack.bundle.archive import read_files, read_head, unpack
from edgepack.bundle.deltas import MAGIC, DeltaRecord, pack_difference, read_records, unpack_new
from edgepack.bundle.encrypted_files import KEY_BYTES, decrypt_stream, encrypt_stream
from edgepack.bundle.feedback import FORMAT, Evidence, Feedback, read_feedback
from edgepack.bundle.golden import read_golden
from edgepack.bundle.keys import (
    generate_key,
    load_private_key,
    load_public_key,
    public_pem,
    write_key_pair,
)
from edgepack.bundle.manifest import MANIFEST_FILE, decode_manifest
from edgepack.bundle.plain_arrays import encode_arrays
from edgepack.bundle.recipients import load_recipient, open_content_key, seal_content_key
from edgepack.bundle.sealed_samples import open_sample, seal_sample
from edgepack.bundle.signature import verify_envelope
from edgepack.errors import (
    BundleError,
    DeviceError,
    FleetError,
    TransferError,
    TrustError,
)
from edgepack.fleet.database.latency import check_window
from edgepack.fleet.documents.releases import SignedMetadata
from edgepack.fleet.enrolment.authority import Authority
from edgepack.fleet.releases.listing import take_metadata
from edgepack.registry.artifact import check_artifact, make_artifact, read_artifact
from edgepack.registry.bundles import bundle_files
from edgepack.registry.credentials import find_credentials
from edgepack.registry.reference import read_reference
from edgepack.versions import NewerVersionError
from edgepack.wire import topics
from edgepack.wire.batches import Batch, Session
from edgepack.wire.coded import pack_coded, read_coded
from edgepack.wire.messages import Message, decode, encode
from edgepack.wire.need_bitmap import pack_missing, read_missing
from edgepack.wire.orders import CaptureOrder, Desired
from edgepack.wire.reports import Renewal, Reported
from edgepack.wire.signed import is_signed_by, read_batch
from edgepack.wire.telemetry import Event, Telemetry
from edgepack.wire.transfers import Need, Piece, Taken
from tests.simulators.bundles import ExampleBundle, make_bundle
from tests.simulators.certificates import issue, make_authority
from tests.simulators.manifests import CPU
from tests.simulators.repository import MemoryCache, RepositoryWorld
from tests.simulators.signing import KEY, RawSigner, sign_with
from tests.simulators.trusting_device import TENANT, TrustingDevice, wants, word
from tests.simulators.world import World
from tests.unit.agent.test_daemon import MemoryPublisher, make_daemon
from tests.unit.untrusted.table import Parser, Read
from tests.unit.untrusted.text_parsers import text_parsers
from tests.unit.untrusted.web_parsers import web_parsers

COMPAT = Path(__file__).parents[2] / "compat"


def all_parsers(folder: Path) -> Iterator[Parser]:
    """All of them.

    Args:
        folder: For their files; must be empty.
    """
    key_file, public_file = write_key_pair(generate_key(), folder / "release")
    bundle = make_bundle(folder / "bundle", load_private_key(key_file))
    yield from _of_bundles(folder, bundle, public_file)
    yield from _of_keys(folder, key_file, public_file)
    yield from _of_identities(folder)
    yield _of_registry(bundle)
    yield from _of_messages(folder)
    yield from _of_metadata(folder, bundle)
    yield from _of_state(folder)
    yield from _of_registries(folder, bundle)
    yield from web_parsers(folder)
    yield from text_parsers()


def _in_file(path: Path, read: Callable[[Path], object]) -> Read:
    def reading(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return reading


def _of_bundles(folder: Path, bundle: ExampleBundle, public_file: Path) -> Iterator[Parser]:
    of_frozen = sorted((COMPAT / "bundles").glob("*.pub"))
    keys = [load_public_key(path) for path in (public_file, *of_frozen)]
    manifest = (bundle.folder / MANIFEST_FILE).read_bytes()
    target = folder / "unpacked"

    def read_archive(path: Path) -> None:
        for read in (
            lambda: read_head(path),
            lambda: read_files(path, ("provenance.json",), 1000),
            lambda: unpack(path, target / "out"),
        ):
            try:
                read()
            finally:
                _empty(target)

    target.mkdir()
    frozen = [path.read_bytes() for path in sorted((COMPAT / "bundles").glob("*.edgepack"))]
    manifests = tuple(_member(content, "manifest.json") for content in frozen)
    signatures = tuple(_member(content, "model.sig") for content in frozen)
    feedback = Feedback(
        model="ocr",
        at=1.0,
        evidence=(
            Evidence(
                version="1.0.0",
                digest="ab" * 32,
                variant="cpu",
                provider=CPU,
                hardware_class="x",
                probe_ms=1.5,
                drift=0.2,
                worst_drift=0.5,
                drift_devices=3,
                shadow_count=9,
                shadow_agreed=8,
                metric="top1_agreement",
                budget=0.98,
            ),
        ),
    )
    yield Parser(
        name="manifest",
        seeds=(manifest, *manifests),
        read=decode_manifest,
        errors=(BundleError, NewerVersionError),
    )
    yield Parser(
        name="envelope",
        seeds=((bundle.folder / "model.sig").read_bytes(), *signatures),
        read=lambda content: verify_envelope(content, keys),
        errors=(BundleError,),
    )
    yield Parser(
        name="archive",
        seeds=tuple(frozen),
        read=_in_file(folder / "fuzzed.edgepack", read_archive),
        errors=(BundleError, NewerVersionError),
    )
    chunk, before = b"weights!" * 4000, b"weights?" * 4000
    width, difference = pack_difference(chunk, before)
    record = DeltaRecord(
        new=bytes(32), old=bytes(32), size_bytes=len(chunk), width=width, packed=difference
    )
    yield Parser(
        name="delta",
        seeds=(MAGIC + 3 * record.encode(),),
        read=_in_file(
            folder / "delta",
            lambda path: [unpack_new(each, before) for each in read_records(path)],
        ),
        errors=(BundleError,),
    )
    yield Parser(
        name="golden samples",
        seeds=((bundle.folder / "golden/golden.npz").read_bytes(),),
        read=_in_file(folder / "golden.npz", read_golden),
        errors=(BundleError,),
    )
    yield Parser(
        name="feedback",
        seeds=(FORMAT.encode(feedback, {}),),
        read=_in_file(folder / "feedback.json", read_feedback),
        errors=(BundleError, NewerVersionError),
    )


def _of_keys(folder: Path, key_file: Path, public_file: Path) -> Iterator[Parser]:
    key = load_private_key(key_file)
    content_key = bytes(KEY_BYTES)
    secret = io.BytesIO()
    encrypt_stream(io.BytesIO(b"weights" * 30_000), secret, content_key, "model/cpu/model.onnx")
    sealed = seal_content_key(content_key, [key.public_key()])
    issue(folder, "cam-1", make_authority(folder, "fleet"), "cam-1")

    def open_key(content: bytes) -> None:
        seals = tuple(msgspec.structs.replace(it, sealed=content) for it in sealed.keys)
        open_content_key(msgspec.structs.replace(sealed, keys=seals), key)

    yield Parser(
        name="encrypted file",
        seeds=(secret.getvalue(),),
        read=lambda content: decrypt_stream(
            io.BytesIO(content), lambda _: None, content_key, "model/cpu/model.onnx"
        ),
        errors=(BundleError,),
    )
    yield Parser(
        name="sealed content key",
        seeds=(sealed.keys[0].sealed,),
        read=open_key,
        errors=(BundleError,),
    )
    for name, file, load in (
        ("recipient's certificate", folder / "cam-1.pem", load_recipient),
        ("public key", public_file, load_public_key),
        ("private key", key_file, load_private_key),
    ):
        yield Parser(
            name=name,
            seeds=(file.read_bytes(),),
            read=_in_file(folder / "fuzzed.pem", load),
            errors=(BundleError,),
        )


def _of_identities(folder: Path) -> Iterator[Parser]:
    """Certificates and requests; changes are made to their DER, which PEM wraps."""
    authority = Authority(folder / "authority")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cam-1")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256())
    asked = request.public_bytes(Encoding.PEM).decode()
    given = authority.sign_client(asked, "cam-1")
    issued = x509.load_pem_x509_certificate(given.encode()).public_bytes(Encoding.DER)
    ends = x509.load_pem_x509_certificate(given.encode()).not_valid_after_utc.timestamp()
    yield Parser(
        name="certificate request",
        seeds=(request.public_bytes(Encoding.DER),),
        read=lambda der: authority.sign_client(_pem("CERTIFICATE REQUEST", der), "cam-1"),
        errors=(FleetError,),
    )
    yield Parser(
        name="certificate to renew",
        seeds=(issued,),
        read=lambda der: authority.check_renewal(
            Renewal(certificate=_pem("CERTIFICATE", der), signing_request=asked), "cam-1", ends - 60
        ),
        errors=(FleetError,),
    )
    yield Parser(
        name="certificate that came",
        seeds=(issued,),
        read=lambda der: judge_certificate(
            _pem("CERTIFICATE", der),
            key=key.public_key(),
            device="cam-1",
            authority=authority.pem.encode(),
            now=ends - 60,
        ),
        errors=(DeviceError,),
    )
    yield Parser(
        name="recipient's certificate, inside",
        seeds=(issued,),
        read=_in_file(
            folder / "inside.pem",
            lambda path: load_recipient(_rewritten(path, _pem("CERTIFICATE", path.read_bytes()))),
        ),
        errors=(BundleError,),
    )
    package = folder / "cam-1.enrol"
    write_package(
        package,
        Package(
            device="cam-1",
            tenant="t",
            broker="mqtts://localhost:8883",
            trusted_keys=(generate_key().public_pem.decode(),),
            authority=authority.pem,
            enrol_at="http://127.0.0.1:1",
            token="once",
            expires_at=1.0,
        ),
    )
    yield Parser(
        name="enrolment package",
        seeds=(package.read_bytes(),),
        read=_in_file(package, read_package),
        errors=(DeviceError,),
    )


def _of_registry(bundle: ExampleBundle) -> Parser:
    manifest = decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())
    files = {entry.path: (entry.sha256, entry.size_bytes) for entry in manifest.files}
    files |= {ref.path: (ref.sha256, ref.size_bytes) for ref in (bundle.manifest, bundle.signature)}
    return Parser(
        name="artifact of a registry",
        seeds=(make_artifact(manifest, bundle.ref.digest, files),),
        read=lambda content: check_artifact(
            read_artifact(content, found_in="x"), manifest, found_in="x"
        ),
        errors=(TransferError,),
    )


def _pem(label: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {label}-----\n{text}-----END {label}-----\n"


def _rewritten(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def _of_messages(folder: Path) -> Iterator[Parser]:
    for kind in (Desired, Reported, Need, Telemetry, Event, Batch, Session):
        name = kind.__name__.lower()
        yield Parser(
            name=f"message {name}",
            seeds=tuple(
                # A batch has its signature in the first line.
                path.read_bytes()[path.read_bytes().find(b"{") :]
                for path in sorted((COMPAT / "messages").glob(f"*/{name}*.json"))
            ),
            read=lambda content, kind=kind: decode(content, kind),  # type: ignore[misc]
            errors=(TransferError,),
        )
    signer = RawSigner(tenant="t", device="cam-1", boot="b", sign=sign_with(KEY))
    signed = signer.sign_raw("event", encode(Event(at=1.0, kind="warning", bundle="x")))
    yield Parser(
        name="signed batch",
        seeds=(signed,),
        read=lambda content: is_signed_by(read_batch(content), KEY.public_key()),
        errors=(TransferError,),
    )
    order = CaptureOrder(
        request="r1", samples=1, of=("drift",), recipient="", collect_s=1.0, expires_at=1.0
    )
    piece = Piece(
        request="r1",
        model="ocr",
        sample="ab" * 32,
        reason="drift",
        size_bytes=3,
        index=0,
        content=b"abc",
    )
    for message in (
        Desired(sequence=1, models={}, captures={"ocr": order}),
        piece,
        Taken(pieces={piece.sample: 1}, refused={piece.sample: "no"}),
    ):
        sampled: type[Message] = type(message)
        yield Parser(
            name=f"message of samples {sampled.__name__.lower()}",
            seeds=(encode(message),),
            read=lambda content, sampled=sampled: decode(content, sampled),  # type: ignore[misc]
            errors=(TransferError,),
        )
    sealed = seal_sample(
        encode_arrays({"x": np.zeros(3)}), public_pem(KEY.public_key()).decode(), ""
    )
    yield Parser(
        name="encrypted sample",
        seeds=(sealed,),
        read=lambda content: open_sample(content, KEY, ""),
        errors=(BundleError, DeviceError),
    )
    packed = pack_missing("ab" * 32, range(0, 4000, 3), 4000)
    yield Parser(
        name="bitmap of a need",
        seeds=(packed.missing,),
        read=lambda content: read_missing(msgspec.structs.replace(packed, missing=content), 4000),
        errors=(TransferError,),
    )
    yield Parser(
        name="latency histogram",
        seeds=tuple(
            path.read_bytes() for path in sorted((COMPAT / "messages").glob("*/telemetry.json"))
        ),
        read=lambda content: check_window(decode(content, Telemetry)),
        errors=(TransferError,),
    )
    (folder / "device").mkdir()
    daemon = make_daemon(World(state_dir=folder / "device", keys=()), MemoryPublisher())
    frame = (3).to_bytes(4) + bytes(65536)
    coded = pack_coded(5, {index: bytes((index % 256,)) * 900 for index in (3, 4, 90, 514)})
    yield Parser(
        name="coded chunk",
        seeds=(coded, pack_coded(2**32 - 1, {2**32 - 1: b"x", 2**32: b"y"})),
        read=read_coded,
        errors=(TransferError,),
    )
    for name, topic in (
        ("chunk frame", topics.broadcast(TENANT, "ab" * 32)),
        ("repair frame", topics.repair(TENANT, "cam-1", "ab" * 32)),
        ("coded frame", topics.coded(TENANT, "ab" * 32)),
    ):
        yield Parser(
            name=name,
            seeds=(frame, frame[:9], coded),
            read=lambda content, topic=topic: daemon.turn(  # type: ignore[misc]
                Arrived(topic=topic, payload=content)
            ),
            errors=(),
        )


def _of_metadata(folder: Path, bundle: ExampleBundle) -> Iterator[Parser]:
    world = RepositoryWorld(folder / "tuf")
    world.publish(bundle)
    orders = word(world, "cam-1", wants(bundle, sequence=5))
    cache = MemoryCache()
    device = TrustingDevice(world, folder / "trusting", cache=cache)
    device.hear_metadata()
    known = dict(cache)

    def hear(name: str, content: bytes) -> None:
        """A device that has all but this file, and hears it."""
        device.cache = MemoryCache({it: text for it, text in known.items() if it != name})
        device.restart()
        if name == "desired":
            device.trust.put_orders(content)
        else:
            device.trust.put_metadata(name, content)
        device.trust.turn()

    said = world.repository.messages() | {"desired": orders}
    for name, content in said.items():
        asked = "2.root.json" if name == "1.root.json" else name
        yield Parser(
            name=f"metadata {name}",
            seeds=(content,),
            read=lambda content, name=asked: hear(name, content),  # type: ignore[misc]
            errors=(TrustError,) if name == "desired" else (),
        )
        if name in ("releases.json", "targets.json"):
            yield Parser(
                name=f"metadata {name} from a publisher",
                seeds=(content,),
                read=lambda content: take_metadata(
                    world.repository,
                    SignedMetadata(
                        role="releases", metadata=content.decode("utf-8", "surrogateescape")
                    ),
                ),
                errors=(FleetError,),
            )


def _of_state(folder: Path) -> Iterator[Parser]:
    """The state folder; who holds the device's disk for a moment wrote it."""
    with tarfile.open(COMPAT / "states" / "1.0.tar.gz") as frozen:
        frozen.extractall(folder / "frozen", filter="data")
    state = folder / "frozen" / "committed"
    write_key_file(state, "/keys/device.key")
    (digest,) = {path.name for path in (state / "slots").iterdir()} & {
        path.stem for path in (state / "downloads").glob("*.json")
    } or {next((state / "slots").iterdir()).name}
    slots = Slots(state)
    slots.write_held(digest, {"ab" * 32: b"\x07"})
    captured = captured_folder(state) / SETTINGS_FILE
    switch_capture(state, CaptureSettings(samples=9, max_bytes=1000))
    note_dropped(state, "ocr", "r1", "0" * 16, Dropped(count=3, because="no key"))
    (dropped,) = captured.parent.glob("*.dropped")
    requests = uploads_file(state)
    requests.save(Uploads())
    model = state / "models" / "ocr"
    spool = next((state / "latency-disk").glob("*.json"))
    verdicts = state / VERDICTS_FILE
    kept = verdicts.read_bytes() if verdicts.exists() else b'{"v": 1, "minor": 0, "verdicts": []}'
    rows: tuple[tuple[str, Path, Callable[[], object], tuple[type[Any], ...]], ...] = (
        ("pointer", model / POINTER_FILE, lambda: read_pointer(state, "ocr"), (DeviceError,)),
        ("journal", model / JOURNAL_FILE, lambda: _read_journal(state), ()),
        ("status", model / JOURNAL_FILE, lambda: read_status(state), ()),
        ("outage", model / JOURNAL_FILE, lambda: describe_outage(state, "ocr"), ()),
        ("release counters", state / COUNTERS_FILE, lambda: ReleaseCounters(state, {}), ()),
        (
            "note of a download",
            state / "downloads" / f"{digest}.json",
            lambda: slots.read_held(digest),
            (),
        ),
        ("verdicts", verdicts, lambda: Verdicts(state), ()),
        ("capture settings", captured, lambda: read_capture(state), ()),
        ("requests for samples", requests.path, requests.load, ()),
        ("dropped samples", dropped, lambda: dropped_samples(state, "ocr", "r1"), ()),
        ("place of the key", state / KEY_PLACE_FILE, lambda: read_key_file(state), (DeviceError,)),
        (
            "latency file",
            spool,
            lambda: read_spooled(spool),
            (TransferError, NewerVersionError, OSError),
        ),
    )
    for name, path, read, errors in rows:
        yield Parser(
            name=f"state: {name}",
            seeds=(path.read_bytes() if path.exists() else kept,),
            read=_in_file(path, lambda _, read=read: read()),  # type: ignore[misc]
            errors=errors,
        )


def _of_registries(folder: Path, bundle: ExampleBundle) -> Iterator[Parser]:
    manifest = decode_manifest((bundle.folder / MANIFEST_FILE).read_bytes())
    artifact = make_artifact(manifest, bundle.ref.digest, bundle_files(bundle.folder, manifest))

    def read_blobs(content: bytes) -> None:
        check_artifact(read_artifact(content, found_in="it"), manifest, found_in="it")

    docker = folder / "docker" / "config.json"
    docker.parent.mkdir()
    settings = b'{"auths": {"host": {"auth": "dXNlcjpzZWNyZXQ="}}, "credsStore": "pass"}'
    yield Parser(name="artifact", seeds=(artifact,), read=read_blobs, errors=(TransferError,))
    yield Parser(
        name="reference",
        seeds=(b"oci://host:5000/a/b:1", f"oci://[::1]/a@sha256:{'0' * 64}".encode()),
        read=lambda content: read_reference(content.decode("utf-8", "replace")),
        errors=(TransferError,),
    )
    yield Parser(
        name="docker's settings",
        seeds=(settings,),
        read=_in_file(
            docker, lambda path: find_credentials("host", {"DOCKER_CONFIG": str(path.parent)})
        ),
        errors=(TransferError,),
    )


def _read_journal(state: Path) -> None:
    read_journal(state, "ocr")
    JournalStore(state, "ocr")


def _member(archive: bytes, name: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        member = next(it for it in opened.getmembers() if it.name.split("/")[-1] == name)
        file = opened.extractfile(member)
        assert file is not None
        return file.read()


def _empty(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
