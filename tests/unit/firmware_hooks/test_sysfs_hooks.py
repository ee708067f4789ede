"""Hooks that read and write sysfs, against a similar tree of files."""

from pathlib import Path

import pytest

from edgepack.firmware_hooks import cpu_governor, require_driver, thermal_guard


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return tmp_path / "sys"


def put(file: Path, content: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


class TestRequireDriver:
    @pytest.mark.parametrize(
        ("version", "code", "words"),
        [
            ("1.10.2", 0, "kernel module amdxdna is 1.10.2; needed: >= 1.9 and < 2"),
            ("1.9.0", 0, "needed: >= 1.9 and < 2"),
            ("1.8.9", 1, "kernel module amdxdna is 1.8.9, too old; needed: >= 1.9 and < 2"),
            ("2.0", 1, "kernel module amdxdna is 2, too new; needed: >= 1.9 and < 2"),
            ("unknown", 1, "kernel module amdxdna says no version: 'unknown'"),
        ],
    )
    def test_a_module_version_is_held_against_the_range(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str], version: str, code: int, words: str
    ) -> None:
        put(sysfs / "module/amdxdna/version", f"{version}\n")
        settings = ["--module=amdxdna", "--at-least=1.9", "--below=2", f"--sysfs={sysfs}"]
        assert require_driver.main(settings) == code
        assert words in said(capsys)

    def test_a_module_that_is_not_loaded_refuses(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert require_driver.main(["--module=intel-vpu", f"--sysfs={sysfs}"]) == 1
        assert said(capsys) == "kernel module intel_vpu is not loaded; needed: any version"

    def test_a_module_without_a_version_refuses_instead_of_guessing(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (sysfs / "module/rknpu").mkdir(parents=True)
        assert require_driver.main(["--module=rknpu", "--at-least=0.9", f"--sysfs={sysfs}"]) == 1
        assert "is loaded but states no version; needed: >= 0.9" in said(capsys)

    def test_every_matching_firmware_file_must_hold(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        put(sysfs / "class/accel/accel0/device/fw_version", "255.0.5.35\n")
        old = put(sysfs / "class/accel/accel1/device/fw_version", "1.5.2.380\n")
        settings = ["--file=class/accel/accel*/device/fw_version", f"--sysfs={sysfs}"]
        assert require_driver.main([*settings, "--at-least=1.5"]) == 0
        capsys.readouterr()
        assert require_driver.main([*settings, "--at-least=1.6"]) == 1
        assert f"version in {old} is 1.5.2.380, too old; needed: >= 1.6" in said(capsys)

    def test_no_firmware_file_at_all_refuses(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert require_driver.main(["--file=class/accel/accel*/fw", f"--sysfs={sysfs}"]) == 1
        assert "there is no file" in said(capsys)

    def test_a_command_can_tell_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        settings = ["--command=echo build 7 firmware v2.31.0", r"--pattern=firmware v([\d.]+)"]
        assert require_driver.main([*settings, "--at-least=2.31"]) == 0
        assert require_driver.main([*settings, "--at-least=2.32"]) == 1
        assert "is 2.31, too old; needed: >= 2.32" in said(capsys)

    def test_a_command_that_fails_or_is_absent_refuses(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert require_driver.main(["--command=sh -c 'echo no device >&2; exit 4'"]) == 1
        assert "failed: no device" in said(capsys)
        assert require_driver.main(["--command=no-such-npu-tool"]) == 1
        assert "'no-such-npu-tool' cannot be run: No such file or directory" in said(capsys)

    def test_a_wrong_setting_refuses(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert require_driver.main(["--module=x", "--at-least=new"]) == 1
        assert "'new' is not a version like 1.2.3" in said(capsys)


class TestCpuGovernor:
    @pytest.fixture
    def policies(self, sysfs: Path) -> list[Path]:
        made = []
        for name, governor in (("policy0", "schedutil"), ("policy4", "powersave")):
            policy = sysfs / "devices/system/cpu/cpufreq" / name
            put(policy / "scaling_available_governors", "performance powersave schedutil \n")
            made.append(put(policy / "scaling_governor", f"{governor}\n"))
        return made

    @pytest.fixture
    def places(self, sysfs: Path, tmp_path: Path) -> list[str]:
        return [f"--sysfs={sysfs}", f"--kept={tmp_path / 'run' / 'governor.json'}"]

    def test_it_sets_every_policy_and_puts_each_back(
        self, policies: list[Path], places: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cpu_governor.main(["--set=performance", *places]) == 0
        assert said(capsys) == (
            "governor of 2 CPU policies is performance; it was powersave, schedutil"
        )
        assert [file.read_text() for file in policies] == ["performance", "performance"]
        assert cpu_governor.main(["--restore", *places]) == 0
        assert [file.read_text() for file in policies] == ["schedutil", "powersave"]

    def test_setting_twice_still_restores_what_was_there_first(
        self, policies: list[Path], places: list[str]
    ) -> None:
        cpu_governor.main(["--set=performance", *places])
        cpu_governor.main(["--set=performance", *places])
        cpu_governor.main(["--restore", *places])
        assert [file.read_text() for file in policies] == ["schedutil", "powersave"]

    def test_an_unknown_governor_refuses_and_changes_nothing(
        self, policies: list[Path], places: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cpu_governor.main(["--set=turbo", *places]) == 1
        assert said(capsys) == (
            "policy0 has no governor 'turbo'; it has performance, powersave, schedutil"
        )
        assert [file.read_text().strip() for file in policies] == ["schedutil", "powersave"]

    def test_without_frequency_scaling_it_goes_on_with_a_note_or_refuses_as_set(
        self, places: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cpu_governor.main(["--set=performance", *places]) == 0
        assert "has no CPU frequency scaling" in said(capsys)
        assert cpu_governor.main(["--set=performance", "--without-cpufreq=refuse", *places]) == 1

    @pytest.mark.usefixtures("policies")
    def test_restoring_what_was_never_set_is_no_failure(
        self, places: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cpu_governor.main(["--restore", *places]) == 0
        assert said(capsys) == "no governor was changed, so there is none to restore"


class TestThermalGuard:
    @pytest.fixture(autouse=True)
    def _zones(self, sysfs: Path) -> None:
        for index, (kind, millidegrees) in enumerate((("cpu-thermal", 61500), ("npu", 84250))):
            zone = sysfs / f"class/thermal/thermal_zone{index}"
            put(zone / "type", f"{kind}\n")
            put(zone / "temp", f"{millidegrees}\n")

    @pytest.mark.parametrize(
        ("settings", "code", "words"),
        [
            (["--limit-c=90"], 0, "hottest of 2 zones is thermal_zone1 (npu) with 84.2 °C"),
            (["--limit-c=80"], 21, "thermal_zone1 (npu) has 84.2 °C, above 80 °C"),
            (["--limit-c=80", "--zone=cpu-thermal"], 0, "(cpu-thermal) with 61.5 °C"),
            (["--limit-c=80", "--zone=gpu"], 1, "no thermal zone of type 'gpu' could be read"),
            (["--limit-c=80", "--zone=gpu", "--without-sensors=go"], 0, "no thermal zone"),
        ],
    )
    def test_the_hottest_zone_decides(
        self,
        sysfs: Path,
        capsys: pytest.CaptureFixture[str],
        settings: list[str],
        code: int,
        words: str,
    ) -> None:
        assert thermal_guard.main([*settings, f"--sysfs={sysfs}"]) == code
        assert words in said(capsys)

    def test_a_sensor_that_does_not_answer_is_left_out(
        self, sysfs: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (sysfs / "class/thermal/thermal_zone1/temp").unlink()
        assert thermal_guard.main(["--limit-c=80", f"--sysfs={sysfs}"]) == 0
        assert "hottest of 1 zones" in said(capsys)
