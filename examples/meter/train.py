"""Train the model of the examples and write `meter.onnx`; minutes on a single CPU core.

    pip install torch onnx onnxscript pillow numpy
    python -m examples.meter.train

The repository carries the result. The network is a plain convolutional classifier: pictures
float32 (1, 3, 64, 64), normalized as for ImageNet, to logits float32 (1, 10).
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from examples.meter.pictures import as_input, pictures

_TRAIN, _TEST, _EPOCHS, _BATCH = 12_000, 2_000, 8, 64


def _load(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = list(pictures(count, seed=seed))
    inputs = np.concatenate([as_input(picture) for picture, _ in drawn])
    return torch.from_numpy(inputs), torch.tensor([digit for _, digit in drawn])


def _network() -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for width, stride in ((24, 2), (48, 1), (48, 2), (96, 1), (96, 2)):
        layers += [
            nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
        ]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def main() -> None:
    """Train, print the accuracy on pictures that training never saw, and export."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    train, train_digits = _load(_TRAIN, seed=1)
    test, test_digits = _load(_TEST, seed=2)
    network = _network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    steps = _EPOCHS * (_TRAIN // _BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for epoch in range(_EPOCHS):
        network.train()
        for batch in torch.randperm(_TRAIN).split(_BATCH)[: _TRAIN // _BATCH]:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(train[batch]), train_digits[batch])
            loss.backward()
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.no_grad():
            right = network(test).argmax(1) == test_digits
        print(f"epoch {epoch + 1}: {right.float().mean():.4f} of {_TEST} unseen pictures")
    torch.onnx.export(
        network,
        (test[:1],),
        str(Path(__file__).with_name("meter.onnx")),
        input_names=["picture"],
        output_names=["scores"],
        opset_version=17,
        dynamo=False,
    )


if __name__ == "__main__":
    main()
