"""Families without shortcuts: AlexNet, VGG, SqueezeNet, GoogLeNet."""

from __future__ import annotations

from torch import nn

from nni_latency.graphs._blocks import Branches, head
from nni_latency.graphs._variation import Variation


def plain(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int | None = None) -> nn.Sequential:
    """Return a convolution with a bias, and ReLU; padded to keep the size unless it is said."""
    padding = kernel // 2 if padding is None else padding
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, padding), nn.ReLU())


def alexnet(vary: Variation) -> nn.Module:
    """AlexNet in one column (arXiv:1404.5997)."""
    width = vary.scale(0.5, 1.3)
    sizes = [vary.channels(round(usual * width / 8) * 8) for usual in (64, 192, 384, 256, 256)]
    first, second, third, fourth, fifth = sizes
    linear = vary.channels(round(4096 * width / 64) * 64, multiple=64)
    return nn.Sequential(
        plain(3, first, vary.kernel(11, (7, 9, 11)), 4, 2),
        nn.MaxPool2d(3, 2),
        plain(first, second, vary.kernel(5, (3, 5, 7))),
        nn.MaxPool2d(3, 2),
        plain(second, third, vary.kernel(3, (3, 5))),
        plain(third, fourth, vary.kernel(3, (3, 5))),
        plain(fourth, fifth, vary.kernel(3, (3, 5))),
        nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(6),
        nn.Flatten(),
        nn.Linear(fifth * 36, linear),
        nn.ReLU(),
        nn.Linear(linear, linear),
        nn.ReLU(),
        nn.Linear(linear, 1000),
    )


def vgg(vary: Variation) -> nn.Module:
    """VGG-16 (arXiv:1409.1556)."""
    width = vary.scale(0.35, 1.0)
    layers: list[nn.Module] = []
    channels = 3
    for usual, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(vary.depth(depth)):
            outputs = vary.channels(max(8, round(usual * width / 8) * 8), low=0.8, high=1.2)
            layers.append(plain(channels, outputs, vary.kernel(3, (1, 3, 3, 5))))
            channels = outputs
        layers.append(nn.MaxPool2d(2, 2))
    linear = vary.channels(round(4096 * width / 64) * 64, multiple=64)
    ends = [nn.Flatten(), nn.Linear(channels * 49, linear), nn.ReLU(), nn.Linear(linear, linear), nn.ReLU()]
    return nn.Sequential(*layers, *ends, nn.Linear(linear, 1000))


def squeezenet(vary: Variation) -> nn.Module:
    """SqueezeNet 1.1 (arXiv:1602.07360)."""
    width = vary.scale(0.6, 1.5)
    channels = vary.channels(64)
    layers: list[nn.Module] = [plain(3, channels, vary.kernel(3, (3, 5, 7)), 2), nn.MaxPool2d(3, 2, ceil_mode=True)]
    for squeezed, expanded, depth in ((16, 64, 2), (32, 128, 2), (48, 192, 2), (64, 256, 2)):
        for _ in range(vary.depth(depth)):
            narrow = vary.channels(max(8, round(squeezed * width / 8) * 8))
            point, window = (vary.channels(max(8, round(expanded * width / 8) * 8)) for _ in range(2))
            layers.append(plain(channels, narrow, 1))
            layers.append(Branches([plain(narrow, point, 1), plain(narrow, window, vary.kernel(3, (3, 5)))]))
            channels = point + window
        if expanded < 192:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(*layers, plain(channels, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


#: 1x1; 1x1 and 3x3; 1x1 and 5x5; pooling and 1x1; a pooling layer stands for a new size.
_INCEPTION = (
    (64, 96, 128, 16, 32, 32),
    (128, 128, 192, 32, 96, 64),
    None,
    (192, 96, 208, 16, 48, 64),
    (160, 112, 224, 24, 64, 64),
    (128, 128, 256, 24, 64, 64),
    (112, 144, 288, 32, 64, 64),
    (256, 160, 320, 32, 128, 128),
    None,
    (256, 160, 320, 32, 128, 128),
    (384, 192, 384, 48, 128, 128),
)


def googlenet(vary: Variation) -> nn.Module:
    """GoogLeNet, without the classifiers on the way (arXiv:1409.4842)."""
    width = vary.scale(0.6, 1.3)

    def scaled(usual: int) -> int:
        return vary.channels(max(8, round(usual * width / 8) * 8))

    first, second, channels = scaled(64), scaled(64), scaled(192)
    layers: list[nn.Module] = [
        plain(3, first, vary.kernel(7, (5, 7)), 2),
        nn.MaxPool2d(3, 2, ceil_mode=True),
        plain(first, second, 1),
        plain(second, channels, 3),
        nn.MaxPool2d(3, 2, ceil_mode=True),
    ]
    for sizes in _INCEPTION:
        if sizes is None:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
            continue
        point, before_three, three, before_five, five, pooled = map(scaled, sizes)
        large = vary.kernel(5, (3, 5))
        ways = [
            plain(channels, point, 1),
            nn.Sequential(plain(channels, before_three, 1), plain(before_three, three, 3)),
            nn.Sequential(plain(channels, before_five, 1), plain(before_five, five, large)),
            nn.Sequential(nn.MaxPool2d(3, 1, 1), plain(channels, pooled, 1)),
        ]
        layers.append(Branches(ways))
        channels = point + three + five + pooled
    return nn.Sequential(*layers, head(channels))
