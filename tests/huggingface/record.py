"""Makes Hugging Face folders of small classifiers, and records answers of `transformers.pipeline`.

    python -m venv .venv-export
    .venv-export/bin/pip install -r benchmarks/export-requirements.txt pillow
    .venv-export/bin/python tests/huggingface/record.py

The models are drawn at random, exported by optimum-onnx as `edgepack build` does, and small. The
answers are those of the float model in PyTorch. `tests/integration/test_huggingface_answers.py`
builds the folders and compares the answers of a device with these.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from optimum.exporters.onnx import main_export
from PIL import Image, ImageFilter

HERE = Path(__file__).parent
NAMES = ("tench", "goldfish", "white shark", "hammerhead", "ray", "cock")


def draw_pictures() -> None:
    """Write pictures of several sizes, colours and formats."""
    folder = HERE / "pictures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for number in range(12):
        rng = np.random.default_rng(number)
        shape = (20 + 7 * number, 90 - 5 * number, 3)
        coarse = rng.integers(0, 256, (4, 4, 3), np.uint8)
        picture = Image.fromarray(coarse).resize(shape[1::-1], Image.Resampling.BICUBIC)
        picture = picture.filter(ImageFilter.GaussianBlur(1))
        if number == 3:
            picture.convert("L").save(folder / "03.png")
        elif number == 5:
            picture.putalpha(Image.new("L", picture.size, 90))
            picture.save(folder / "05.png")
        elif number == 7:
            exif = Image.Exif()
            exif[0x0112] = 6
            picture.save(folder / "07.jpg", exif=exif, quality=80)
        else:
            picture.save(folder / f"{number:02}.jpg", quality=80)


def record(name: str, config: Any, kind: Any, processor: Any) -> None:
    """Write a folder with a model, its ONNX export and the answers of the pipeline."""
    torch.manual_seed(len(name))
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    config.id2label = dict(enumerate(NAMES))
    config.label2id = {label: number for number, label in enumerate(NAMES)}
    model = kind(config).eval()
    with torch.no_grad():  # Else all pictures are of one class.
        for part in model.classifier.modules():
            if isinstance(part, torch.nn.Linear):
                part.weight.mul_(60.0)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    pipeline = transformers.pipeline("image-classification", str(folder))
    answers = {path.name: pipeline(str(path)) for path in sorted((HERE / "pictures").iterdir())}
    exported = HERE / f"{name}-exported"
    main_export(str(folder), str(exported), task="image-classification", opset=17, device="cpu")
    (exported / "model.onnx").replace(folder / "model.onnx")
    shutil.rmtree(exported)
    (folder / "model.safetensors").unlink()
    told = {"transformers": transformers.__version__, "torch": torch.__version__}
    content = {"made_with": told, "answers": answers}
    (folder / "pipeline.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    """Record all models."""
    draw_pictures()
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    record(
        "vit",
        transformers.ViTConfig(**size, intermediate_size=32, image_size=32, patch_size=8),
        transformers.ViTForImageClassification,
        transformers.ViTImageProcessor(size={"height": 32, "width": 32}),
    )
    record(
        "resnet",
        transformers.ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="basic",
            problem_type="multi_label_classification",
        ),
        transformers.ResNetForImageClassification,
        transformers.ConvNextImageProcessor(size={"shortest_edge": 56}, crop_pct=0.875, resample=3),
    )


if __name__ == "__main__":
    main()
