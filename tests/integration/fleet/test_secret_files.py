"""Files with secrets are their owner's alone, even in a folder that was there before."""

import os
from pathlib import Path

from tests.integration.fleet.conftest import Serve, TlsBroker


def test_the_database_in_a_folder_that_existed_is_the_owners_alone(
    serve: Serve, tmp_path: Path
) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        fleet = serve()
        secret = fleet.client.add_webhook("chat", "https://93.184.215.14/").secret
    finally:
        os.umask(before)
    files = sorted(folder.glob("fleet.db*"))
    assert [path.name for path in files] == ["fleet.db", "fleet.db-shm", "fleet.db-wal"]
    assert any(secret.encode() in path.read_bytes() for path in files)
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_secrets_that_others_could_read_are_closed_to_them_at_the_start(
    tls_broker: TlsBroker, serve: Serve, tmp_path: Path
) -> None:
    fleet = serve("--broker", tls_broker.url)
    fleet.stop()
    secrets = [
        *(fleet.data / name for name in ("token", "fleet.db", "pki/ca.key", "pki/controller.key")),
        *(fleet.data / "tuf/online").iterdir(),
        *(fleet.data / "tuf/offline").iterdir(),
    ]
    assert len(secrets) > 8
    for path in secrets:
        path.chmod(0o664)
    for name in ("pki", "tuf/online", "tuf/offline"):
        (fleet.data / name).chmod(0o775)
    fleet.start()
    assert [path for path in secrets if path.stat().st_mode & 0o077] == []
    assert (fleet.data / "pki").stat().st_mode & 0o077 == 0
