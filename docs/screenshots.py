"""Takes the pictures of README and site: the report of the demo's build, as a browser shows it.

make screenshots
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from examples.demo.__main__ import BUNDLE, FOLDER, tell_build

PICTURE = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1080, 1350
COLOURS = 64
"""Enough for a page of text; the file is a fifth of the browser's."""


def main() -> None:
    """Builds the demo's bundle and writes the picture of its report."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        sys.exit("chromium is missing: apt-get install chromium")
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    tell_build()
    report = Path(f"{BUNDLE}.report.html").resolve()
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "report.png"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *(f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={shot}", report.as_uri()),
            ],
            check=True,
            capture_output=True,
        )
        picture = Image.open(shot).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    PICTURE.parent.mkdir(exist_ok=True)
    picture.save(PICTURE, optimize=True)
    print(f"{PICTURE}: {PICTURE.stat().st_size // 1000} KB")


if __name__ == "__main__":
    main()
