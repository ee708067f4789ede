"""What `edgepack build` says of a search that was stopped."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from edgepack.bundle import keys_cli
from edgepack.packager.cli import build as cli
from edgepack.packager.search.journal import journal_folder


@pytest.mark.parametrize("measured", [True, False])
def test_a_stopped_build_says_where_what_it_measured_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, measured: bool
) -> None:
    output = tmp_path / "m-1.0.0.edgepack"
    if measured:
        journal_folder(output).mkdir()

    def stop(*_: object) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(cli, "build_bundle", stop)
    runner = CliRunner()
    runner.invoke(keys_cli.keys, ["generate", "-o", str(tmp_path / "release")])
    words = ["model.onnx", "--profile", "cpu", "--key", str(tmp_path / "release.key")]
    stopped = runner.invoke(cli.build, [*words, "-o", str(output)])
    assert stopped.exit_code == 130
    kept = f"what was measured is in {journal_folder(output)}: the same command goes on there"
    assert (kept in stopped.stderr) is measured
