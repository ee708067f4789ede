"""Place, name and release number of a bundle."""

from pathlib import Path

import pytest

from edgepack.errors import BuildError
from edgepack.packager.bundling.output import (
    check_name,
    check_output,
    choose_release,
    read_output_name,
)


def test_the_release_follows_from_the_version() -> None:
    assert choose_release("1.2.0", None) == 1_002_000
    assert choose_release("12.34.567", None) == 12_034_567
    assert choose_release("2026-11", 7) == 7
    assert choose_release("1.0.0", 0) == 0
    assert choose_release("1.0.0", 2**53) == 2**53


@pytest.mark.parametrize("version", ["1.2", "1.2.0-rc1", "1.2000.0", "nightly"])
def test_a_version_that_gives_no_release_asks_for_one(version: str) -> None:
    with pytest.raises(BuildError) as caught:
        choose_release(version, None)
    assert caught.value.remedy == (
        "--version 1.2.0; or --release N, greater than that of every release before"
    )


@pytest.mark.parametrize("release", [-1, 2**53 + 1])
def test_a_release_out_of_range_is_refused(release: int) -> None:
    with pytest.raises(BuildError, match="is not within 0"):
        choose_release("1.0.0", release)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("ocr-1.2.0.edgepack", ("ocr", "1.2.0")),
        ("ocr-reader-1.2.0", ("ocr-reader", "1.2.0")),
        ("ocr.edgepack", ("", "")),
        ("yolo-v8.edgepack", ("", "")),
    ],
)
def test_the_outputs_name_may_say_name_and_version(output: str, expected: tuple[str, str]) -> None:
    assert read_output_name(Path(output)) == expected


def test_a_name_that_fits_no_topic_is_refused() -> None:
    with pytest.raises(BuildError, match="'my model' is not a model name") as caught:
        check_name("my model")
    assert caught.value.remedy == "--name my-model"


@pytest.mark.parametrize("name", ["ocr-1.2.0.zip", "ocr.onnx"])
def test_an_output_named_like_another_kind_of_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BuildError, match="a bundle is no") as caught:
        check_output(tmp_path / name, replace=True)
    assert (caught.value.remedy or "").startswith(f"-o {Path(name).stem}.edgepack")


def test_what_is_no_bundle_is_never_replaced(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.edgepack"
    precious.write_text("years of work")
    with pytest.raises(BuildError, match="is there already and is not a bundle"):
        check_output(precious, replace=True)
    with pytest.raises(BuildError, match="is there already and is not a bundle"):
        check_output(tmp_path, replace=True)


@pytest.mark.parametrize("name", ["manifest.json", "model.sig"])
def test_a_folder_with_half_of_what_makes_a_bundle_is_never_replaced(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("of an application's own")
    with pytest.raises(BuildError, match="is there already and is not a bundle"):
        check_output(tmp_path, replace=True)
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "model.sig").write_text("{}")
    check_output(tmp_path, replace=True)
    with pytest.raises(BuildError, match="is there already") as caught:
        check_output(tmp_path, replace=False)
    assert (caught.value.remedy or "").startswith("--force replaces it")


def test_a_missing_folder_is_refused_before_work_begins(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        check_output(tmp_path / "gone" / "a.edgepack", replace=False)
    assert caught.value.remedy == f"mkdir -p {tmp_path / 'gone'}"
