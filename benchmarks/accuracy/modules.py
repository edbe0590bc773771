"""PyTorch modules of the networks. Their parameters have the names in the files of weights."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional


class DigitsCNN(nn.Module):
    """Two normalized convolutions, each with pooling, and two linear layers."""

    def __init__(self, widths: tuple[int, int] = (16, 32), pools: tuple[int, int] = (2, 2)) -> None:
        super().__init__()
        self.pools = pools
        self.conv1, self.bn1 = nn.Conv2d(1, widths[0], 3, padding=1), nn.BatchNorm2d(widths[0])
        self.conv2, self.bn2 = nn.Conv2d(widths[0], widths[1], 3, padding=1), nn.BatchNorm2d(widths[1])
        side = 8 // (pools[0] * pools[1])
        self.fc1, self.fc2 = nn.Linear(widths[1] * side * side, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), self.pools[0])
        x = functional.max_pool2d(functional.relu(self.bn2(self.conv2(x))), self.pools[1])
        return self.fc2(functional.relu(self.fc1(x.flatten(1))))


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, outputs - inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.relu(y + functional.pad(x, (0, 0, 0, 0, self.more // 2, self.more // 2)))


class ResNet(nn.Module):
    """ResNet of three stages for CIFAR-10, whose shortcuts have no parameters."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for k, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = _Residual(inputs, outputs, 1 if k == 1 else 2)
            stage = nn.Sequential(first, *(_Residual(outputs, outputs, 1) for _ in range(blocks - 1)))
            self.add_module(f"layer{k}", stage)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = stage(x)
        return self.linear(x.mean((2, 3)))


class TinyResNet(nn.Module):
    """ResNet-8 of MLPerf Tiny: convolutions with bias, and padding as in TensorFlow."""

    #: Inputs, outputs, kernel size and stride of each convolution; the third of a block is the shortcut.
    BLOCKS = (((16, 32, 3, 2), (32, 32, 3, 1), (16, 32, 1, 2)), ((32, 64, 3, 2), (64, 64, 3, 1), (32, 64, 1, 2)))
    SHAPES = ((3, 16, 3, 1), (16, 16, 3, 1), (16, 16, 3, 1), *BLOCKS[0], *BLOCKS[1])

    def __init__(self) -> None:
        super().__init__()
        for k, (inputs, outputs, size, stride) in enumerate(self.SHAPES):
            self.add_module(
                f"conv{k}", nn.Conv2d(inputs, outputs, size, stride, padding=(size - 1) // 2 * (2 - stride))
            )
        for k, width in enumerate((16, 16, 16, 32, 32, 64, 64)):
            self.add_module(f"bn{k}", nn.BatchNorm2d(width, eps=1e-3))
        self.dense = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.bn0(self.conv0(x)))
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        x = functional.relu(x + y)
        for convolutions, norms in (((3, 4, 5), (3, 4)), ((6, 7, 8), (5, 6))):
            one, two, shortcut = (self.get_submodule(f"conv{k}") for k in convolutions)
            bn_one, bn_two = (self.get_submodule(f"bn{k}") for k in norms)
            y = bn_two(two(functional.relu(bn_one(one(functional.pad(x, (0, 1, 0, 1)))))))
            x = functional.relu(shortcut(x) + y)
        return self.dense(x.mean((2, 3)))


class _Fire(nn.Module):
    def __init__(self, inputs: int, squeezed: int) -> None:
        super().__init__()
        self.conv1x1_1 = nn.Conv2d(inputs, squeezed, 1)
        self.conv1x1_2 = nn.Conv2d(squeezed, 4 * squeezed, 1)
        self.conv3x3_2 = nn.Conv2d(squeezed, 4 * squeezed, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1x1_1(x))
        return functional.relu(torch.cat([self.conv1x1_2(x), self.conv3x3_2(x)], 1))


class SqueezeNet(nn.Module):
    """SqueezeNet 1.0."""

    #: Inputs, and outputs of the first convolution; the other two have four times as many.
    FIRES = ((96, 16), (128, 16), (128, 32), (256, 32), (256, 48), (384, 48), (384, 64), (512, 64))

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 96, 7, 2)
        for k, (inputs, squeezed) in enumerate(self.FIRES, 2):
            self.add_module(f"fire{k}", _Fire(inputs, squeezed))
        self.conv_final = nn.Conv2d(512, 1000, 1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.conv1(x))
        for k in range(2, 10):
            if k in (2, 5, 9):
                x = functional.max_pool2d(x, 3, 2, ceil_mode=True)
            x = self.get_submodule(f"fire{k}")(x)
        return functional.relu(self.conv_final(x)).mean((2, 3))


class MiniLM(nn.Module):
    """Sentence embeddings by BERT with 6 layers: means of the last layer, of length 1."""

    def __init__(self, words: int, width: int = 384, layers: int = 6, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads

        def linear(inputs: int, outputs: int) -> nn.ModuleDict:
            return nn.ModuleDict({"dense": nn.Linear(inputs, outputs)})

        def normalized(inputs: int) -> nn.ModuleDict:
            return nn.ModuleDict({"dense": nn.Linear(inputs, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})

        def layer() -> nn.ModuleDict:
            projections = nn.ModuleDict({name: nn.Linear(width, width) for name in ("query", "key", "value")})
            attention = nn.ModuleDict({"self": projections, "output": normalized(width)})
            parts = {"attention": attention, "intermediate": linear(width, 4 * width), "output": normalized(4 * width)}
            return nn.ModuleDict(parts)

        counts = {"word": words, "position": 512, "token_type": 2}
        tables: dict[str, nn.Module] = {f"{name}_embeddings": nn.Embedding(n, width) for name, n in counts.items()}
        self.embeddings = nn.ModuleDict(tables | {"LayerNorm": nn.LayerNorm(width, eps=1e-12)})
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layer() for _ in range(layers))})

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        tables = self.embeddings
        x = tables["word_embeddings"](ids) + tables["position_embeddings"].weight[: ids.shape[1]]
        x = tables["LayerNorm"](x + tables["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            parts = (layer["attention"]["self"][name](x) for name in ("query", "key", "value"))
            query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            y = functional.scaled_dot_product_attention(query, key, value, mask[:, None, None, :])
            y = layer["attention"]["output"]["dense"](y.transpose(1, 2).flatten(2))
            x = layer["attention"]["output"]["LayerNorm"](x + y)
            y = layer["output"]["dense"](functional.gelu(layer["intermediate"]["dense"](x)))
            x = layer["output"]["LayerNorm"](x + y)
        weights = mask[..., None].float()
        return functional.normalize((x * weights).sum(1) / weights.sum(1), dim=-1)


def plain_cnn() -> nn.Module:
    """Return a network of three convolutions and two linear layers for CIFAR-10."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 24), (24, 48), (48, 96)):
        layers += [*_normalized(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96 * 16, 128), nn.ReLU(), nn.Linear(128, 10))


def mobile_cnn() -> nn.Module:
    """Return a network of depthwise and pointwise convolutions for CIFAR-10."""
    layers = _normalized(nn.Conv2d(3, 32, 3, 2, 1, bias=False))
    for inputs, outputs, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1)):
        layers += _normalized(nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False))
        layers += _normalized(nn.Conv2d(inputs, outputs, 1, bias=False))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def _normalized(convolution: nn.Conv2d) -> list[nn.Module]:
    return [convolution, nn.BatchNorm2d(convolution.out_channels), nn.ReLU()]


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def _blocks(width: int, layers: int, causal: bool) -> Iterable[nn.Module]:
    return (_Block(width, 4, causal) for _ in range(layers))


class VisionTransformer(nn.Module):
    """Transformer over 16 patches of an image of CIFAR-10, after two convolutions."""

    def __init__(self, width: int = 96, layers: int = 4) -> None:
        super().__init__()
        self.stem, self.patches = nn.Conv2d(3, 24, 3, 2, 1), nn.Conv2d(24, width, 4, 4)
        self.positions = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks, self.norm = nn.Sequential(*_blocks(width, layers, causal=False)), nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(functional.relu(self.stem(x))).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x + self.positions)).mean(1))


class CharacterTransformer(nn.Module):
    """Scores of the next character at each position of a window, shape (n, window, characters)."""

    def __init__(self, characters: int, window: int, width: int = 96, layers: int = 3) -> None:
        super().__init__()
        self.characters, self.positions = nn.Embedding(characters, width), nn.Parameter(torch.zeros(window, width))
        self.blocks, self.norm = nn.Sequential(*_blocks(width, layers, causal=True)), nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.characters(ids) + self.positions)))
