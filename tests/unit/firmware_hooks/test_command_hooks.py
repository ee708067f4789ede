"""The hook with systemctl, against small programs with the same answers."""

from pathlib import Path

import pytest

from edgepack.firmware_hooks import restart_service
from tests.simulators.children import LONGER_AND_LONGER_S


def program(file: Path, script: str) -> str:
    file.write_text(f"#!/bin/sh\necho \"$@\" >> '{file}.calls'\n{script}\n")
    file.chmod(0o755)
    return str(file)


def calls(file: str) -> list[str]:
    return Path(f"{file}.calls").read_text().splitlines()


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


class TestRestartService:
    def restart(self, systemctl: str, *settings: str) -> int:
        return restart_service.main(
            ["--unit=cam.service", "--settle-s=0", f"--systemctl={systemctl}", *settings]
        )

    def test_a_service_that_comes_up_is_restarted_and_looked_at_twice(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        systemctl = program(tmp_path / "systemctl", '[ "$1" = restart ] || echo active')
        assert self.restart(systemctl) == 0
        assert said(capsys) == "cam.service was restarted and is active"
        assert calls(systemctl) == [
            "restart cam.service",
            "is-active cam.service",
            "is-active cam.service",
        ]

    def test_a_service_that_starts_slowly_is_waited_for(self, tmp_path: Path) -> None:
        systemctl = program(
            tmp_path / "systemctl",
            f'[ "$1" = restart ] && exit\n'
            f"[ $(wc -l < '{tmp_path}/systemctl.calls') -gt 3 ] && echo active || echo activating",
        )
        assert self.restart(systemctl) == 0
        assert calls(systemctl).count("is-active cam.service") > 2

    def test_a_service_that_never_starts_refuses_at_the_time_limit(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        systemctl = program(tmp_path / "systemctl", '[ "$1" = restart ] || echo activating')
        for timeout_s in LONGER_AND_LONGER_S:
            assert self.restart(systemctl, f"--timeout-s={timeout_s}") == 1
            words = said(capsys)
            if "activating" in words:
                break
        assert words == f"cam.service is still activating {timeout_s:g} s after its restart"

    def test_a_service_that_crashes_after_its_start_refuses(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        systemctl = program(
            tmp_path / "systemctl",
            f'[ "$1" = restart ] && exit\n'
            f"[ $(wc -l < '{tmp_path}/systemctl.calls') = 2 ] && echo active || echo failed",
        )
        assert self.restart(systemctl) == 1
        assert said(capsys) == "cam.service is failed after its restart"

    def test_what_systemctl_says_is_told(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        systemctl = program(
            tmp_path / "systemctl", "echo 'Unit cam.service not found.' >&2; exit 5"
        )
        assert self.restart(systemctl) == 1
        assert said(capsys) == "cam.service did not restart: Unit cam.service not found."

    def test_a_restart_that_hangs_refuses(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        systemctl = program(tmp_path / "systemctl", "exec sleep 60")
        assert self.restart(systemctl, "--timeout-s=0.3") == 1
        assert "did not end within 0.3 s" in said(capsys)

    def test_a_device_without_systemd_refuses(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.restart(str(tmp_path / "absent")) == 1
        assert "cannot be run: No such file or directory" in said(capsys)
