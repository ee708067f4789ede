"""What a build prints: a table of plain text, made without slow imports."""

import subprocess
import sys

import click
import pytest

from edgepack.packager.cli.text_table import text_list, text_table


def test_cells_have_two_lines_and_columns_are_aligned() -> None:
    rows = [
        (("cpu", "CPU, a8w8"), ("739 KB", "1.7× smaller")),
        (("fp32", ""), ("1.29 MB", "")),
    ]
    lines = [click.unstyle(line) for line in text_table(("profile", "size"), rows, right=["size"])]
    assert lines == [
        " profile            size",
        " ───────────────────────",
        " cpu              739 KB",
        " CPU, a8w8  1.7× smaller",
        " fp32            1.29 MB",
    ]


def test_a_table_that_is_wider_than_the_terminal_becomes_a_list() -> None:
    rows = [
        (("cpu", "CPU, a8w8"), ("739 KB", "1.7× smaller"), ("35/35", "")),
        (("fp32", ""), ("1.29 MB", ""), ("", "")),
    ]
    lines = [click.unstyle(line) for line in text_list(("profile", "size", "nodes"), rows)]
    assert lines == [
        " cpu  CPU, a8w8",
        "   size   739 KB, 1.7× smaller",
        "   nodes  35/35",
        " fp32",
        "   size   1.29 MB",
    ]


def test_a_build_starts_without_what_few_builds_need() -> None:
    program = (
        "import sys, edgepack.packager.cli.build\n"
        "slow = {'rich', 'sympy', 'torch', 'onnxruntime.quantization', 'onnx.reference'}\n"
        "print(sorted(slow & sys.modules.keys()))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.decode().strip() == "[]"


@pytest.mark.parametrize(
    "child", ["packager.runtime.trial", "packager.runtime.race_child", "agent.generation.probing"]
)
def test_a_child_that_runs_a_model_needs_no_onnx(child: str) -> None:
    """A board has no onnx, and a device has no memory for it."""
    program = f"import sys, edgepack.{child}; print('onnx' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert ended.stdout.decode().strip() == "False"
