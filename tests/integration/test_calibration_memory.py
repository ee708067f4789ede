"""Calibration over many images needs the memory of calibration over few."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from edgepack.packager.graph.model_files import save_model
from tests.unit.packager_passes.models import parsed_model, weight

_ROOM_BYTES = 80 << 20
"""What a process may take more; a thousand samples are 600 MB, their activations 800 MB."""

_CHILD = """
import resource, sys
from pathlib import Path
from edgepack.packager.graph.model_files import load_model
from edgepack.packager.config.inputs import ImageInput, WantedInputs
from edgepack.packager.profiles.pass_settings import Quantize
from edgepack.packager.progress import silent
from edgepack.packager.quantization.contract import CandidateSpec
from edgepack.packager.quantization.contract import QuantizationMethod
from edgepack.packager.quantization.static.candidate_maker import StaticCandidateMaker
from edgepack.packager.samples.files import open_samples
from edgepack.packager.source.model import load_source

path, images = Path(sys.argv[1]), sys.argv[2]
declared = {"images": ImageInput(layout="NCHW", size=(224, 224), scale=1 / 255)}
wanted = WantedInputs(specs=load_source(path).inputs, declarations=declared)
samples = open_samples(images, wanted, silent).samples
settings = Quantize(ops="compute", activations="uint8", weights="int8", ranges=("entropy",))
StaticCandidateMaker(
    load_model(path), settings, samples, work_dir=path.with_suffix(""), progress=silent
).build(CandidateSpec(method=QuantizationMethod(base="entropy")))
print(samples.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_entropy_over_a_thousand_images_takes_no_more_memory_than_over_ten(
    tmp_path: Path,
) -> None:
    model = parsed_model(
        "(float[1,3,224,224] images) => (float[1,4,28,28] y) { "
        "[first] h = Conv<strides=[2,2]>(images, w1) [relu] r = Relu(h) "
        "[second] y = Conv<strides=[4,4]>(r, w2) }",
        [weight("w1", 16, 3, 2, 2), weight("w2", 4, 16, 3, 3)],
    )
    save_model(model, tmp_path / "model.onnx")
    peaks = {}
    for count in (10, 1000):
        folder = tmp_path / f"{count}"
        folder.mkdir()
        rng = np.random.default_rng(0)
        for number in range(count):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04}.png")
        ended = subprocess.run(
            [sys.executable, "-c", _CHILD, str(tmp_path / "model.onnx"), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert ended.returncode == 0, ended.stderr
        read, peak = ended.stdout.split()
        assert int(read) == count
        peaks[count] = int(peak)
    assert peaks[1000] < peaks[10] + _ROOM_BYTES
