"""Modules of PyTorch: layers that form blocks, and equal outputs of networks with the restored tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError
from nnr_codec.formats.pytorch import from_module, load_state
from nnr_codec.model import Block, Model

from .torch_support import floats, loaded, same, written
from .torch_support import pytorch as torch_or_skip

pytestmark = pytest.mark.torch


@pytest.fixture(name="torch")
def fixture_torch() -> Any:
    return torch_or_skip()


def randomized(torch: Any, module: Any) -> Any:
    """Return the module in evaluation mode, with random statistics as after training."""
    with torch.no_grad():
        for layer in module.modules():
            if isinstance(getattr(layer, "running_var", None), torch.Tensor):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.3, 3)
                if layer.affine:
                    layer.weight.normal_(1, 0.3)
                    layer.bias.normal_()
    return module.eval()


def residual(torch: Any) -> Any:
    """Return a small network with all layer types of image networks."""
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1), nn.BatchNorm2d(outputs, eps=1e-3)
            self.down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.bn1(self.conv1(x)))
            return functional.relu(self.bn2(self.conv2(y)) + self.down(x))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.bn = nn.Conv2d(3, 8, 3, 1, 1), nn.BatchNorm2d(8)
            self.layers = nn.Sequential(Layer(8, 8), Layer(8, 16, 2))
            self.grouped, self.gbn = nn.Conv2d(16, 16, 3, groups=4), nn.BatchNorm2d(16)
            self.up, self.ubn = nn.ConvTranspose2d(16, 12, 2, 2), nn.BatchNorm2d(12)
            self.both, self.bbn = nn.Conv2d(12, 12, 1), nn.BatchNorm2d(12)
            self.fc, self.fbn, self.head = nn.Linear(12, 20), nn.BatchNorm1d(20), nn.Linear(20, 10)

        def forward(self, x: Any) -> Any:
            x = self.layers(functional.relu(self.bn(self.stem(x))))
            x = self.ubn(self.up(self.gbn(self.grouped(x))))
            both = self.both(x)  # which another layer needs as well
            x = functional.adaptive_avg_pool2d(self.bbn(both) + both, 1).flatten(1)
            return self.head(functional.relu(self.fbn(self.fc(x))))

    return randomized(torch, Network())


def blocks(model: Model) -> dict[str, Block]:
    assert model.topology
    return {block.weight: block for block in formats.wiring(model.topology).blocks}


def joins(module: Any, *inputs: Any) -> set[tuple[str, str]]:
    """Return the layers that are joined."""
    found = blocks(from_module(module, inputs or None)).values()
    return {(block.weight[:-7], str(block.gamma)[:-7]) for block in found if block.gamma}


def test_the_blocks_of_a_network(torch: Any) -> None:
    model = from_module(residual(torch))
    assert blocks(model)["layers.1.conv2.weight"] == Block(
        "layers.1.conv2.weight",
        "layers.1.conv2.bias",
        "layers.1.bn2.bias",
        "layers.1.bn2.weight",
        "layers.1.bn2.running_mean",
        "layers.1.bn2.running_var",
        epsilon=1e-3,
    )
    assert {weight: (block.gamma or "")[:-7] for weight, block in blocks(model).items()} == {
        "stem.weight": "bn",
        **{f"layers.{k}.conv{n}.weight": f"layers.{k}.bn{n}" for k in (0, 1) for n in (1, 2)},
        **{f"layers.{k}.down.0.weight": f"layers.{k}.down.1" for k in (0, 1)},
        "grouped.weight": "gbn",
        "up.weight": "ubn",
        "both.weight": "",
        "fc.weight": "fbn",
        "head.weight": "",
    }
    assert blocks(model)["up.weight"].axis == 1
    assert blocks(model)["layers.0.conv1.weight"].bias is None


FINE = {"qp": -72}


@pytest.mark.medium
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (FINE, 1e-4),
        (FINE | {"block": True}, 1e-4),
        (FINE | {"fold_batchnorm": True}, 1e-4),
        (FINE | {"fold_batchnorm": True, "local_scaling": True}, 1e-4),
        ({}, 0.02),
        ({"fold_batchnorm": True}, 0.02),
        ({"exact": True}, 0),
    ],
    ids=str,
)
def test_outputs(torch: Any, options: dict[str, Any], error: float) -> None:
    network, x = residual(torch), torch.randn(4, 3, 16, 16)
    expected = network(x).detach()
    data = nnr.encode(from_module(network), **options)
    restored = copy.deepcopy(network)
    with torch.no_grad():
        for value in [*restored.parameters(), *restored.buffers()]:
            value.fill_(1)
    load_state(restored, nnr.decode(data))
    found = restored(x).detach()
    assert float((found - expected).abs().max() / expected.abs().max()) <= error
    if options.get("fold_batchnorm"):
        assert restored.bn.running_mean.abs().max() == 0
        assert float(restored.bn.running_var[0]) == pytest.approx(1 - 1e-5)
        # Layers that are not joined are unchanged.
        assert restored.bbn.running_mean.abs().max() > 0
        assert len(data) < len(nnr.encode(from_module(network), **{**options, "fold_batchnorm": False}))


def test_folding_excludes_layers_that_are_used_twice(torch: Any) -> None:
    """Joining it would change the outputs."""
    network, x = residual(torch), torch.randn(2, 3, 16, 16)
    model = from_module(network)
    folded = nnr.folded(model, fold_batchnorm=True)
    assert np.array_equal(folded["both.bias"], model["both.bias"])
    assert not folded["up.bias"].any()
    other = copy.deepcopy(network)
    load_state(other, folded)
    torch.testing.assert_close(other(x), network(x), rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------------------------------------ joins, and none
def custom(torch: Any, forward: Callable[..., Any], **layers: Any) -> Any:
    """Return a module of layers with this forward function."""

    class Custom(torch.nn.Module):  # type: ignore[misc, name-defined]
        pass

    Custom.forward = forward
    module = Custom()
    for name, layer in layers.items():
        setattr(module, name, layer)
    return randomized(torch, module)


def pair(torch: Any, forward: Callable[..., Any], **more: Any) -> Any:
    layers = {"c": torch.nn.Conv2d(3, 4, 3), "n": torch.nn.BatchNorm2d(4)}
    return custom(torch, forward, **(layers | more))


def test_a_pair(torch: Any) -> None:
    assert joins(pair(torch, lambda self, x: self.n(self.c(x)))) == {("c", "n")}


def twice(self: Any, x: Any) -> Any:
    return self.n(self.c(x)) + self.n(self.c(x + 1))


def returned(self: Any, x: Any) -> Any:
    y = self.c(x)
    return self.n(y), y


def between(self: Any, x: Any) -> Any:
    return self.n(self.c(x).relu())


def summed(self: Any, x: Any) -> Any:
    return self.n(self.c(x) + 1)


def used(self: Any, x: Any) -> Any:
    return self.n(self.c(x)) * self.c.bias.sum()


def norm_used(self: Any, x: Any) -> Any:
    return self.n(self.c(x)) * self.n.running_mean.sum()


def normed_twice(self: Any, x: Any) -> Any:
    return self.n(self.c(x)) + self.m(self.c(x + 1))


def shared_norm(self: Any, x: Any) -> Any:
    return self.n(self.c(x)) + self.n(self.d(x))


def reused(self: Any, x: Any) -> Any:
    return self.m(self.n(self.c(x))) + self.c(x)


@pytest.mark.parametrize("forward", [twice, returned, between, summed, used, norm_used])
def test_layers_that_are_not_joined(torch: Any, forward: Callable[..., Any]) -> None:
    assert joins(pair(torch, forward)) == set()


@pytest.mark.parametrize("forward", [normed_twice, shared_norm, reused])
def test_layers_that_are_called_again(torch: Any, forward: Callable[..., Any]) -> None:
    more = {"m": torch.nn.BatchNorm2d(4), "d": torch.nn.Conv2d(3, 4, 3)}
    assert ("c", "n") not in joins(pair(torch, forward, **more))


def test_layers_that_are_changed(torch: Any) -> None:
    nn = torch.nn

    def forward(self: Any, x: Any) -> Any:
        return self.n(self.c(x))

    class Other(nn.Conv2d):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 2

    def hooked(layer: str) -> Any:
        module = pair(torch, forward)
        getattr(module, layer).register_forward_hook(lambda *_: None)
        return module

    def replaced() -> Any:
        module = pair(torch, forward)
        module.c.forward = lambda x: x[:, :1].expand(-1, 4, -1, -1)
        return module

    tied = pair(torch, forward, d=nn.Conv2d(3, 4, 3))
    tied.d.bias = tied.c.bias
    changed = [
        pair(torch, forward, c=Other(3, 4, 3)),
        pair(torch, forward, c=nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))),
        hooked("c"),
        hooked("n"),
        replaced(),
        tied,
        pair(torch, forward, n=nn.BatchNorm2d(4, affine=False)),
        pair(torch, forward, n=nn.BatchNorm2d(4, track_running_stats=False)),
        pair(torch, forward, n=nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        pair(torch, forward, c=nn.Identity(), d=nn.Conv2d(3, 4, 3)),
    ]
    for module in changed:
        assert joins(module) == set()


def test_vectors_and_sequences(torch: Any) -> None:
    """BatchNorm1d normalizes the second dimension, which for sequences of vectors is not the output dimension."""
    nn = torch.nn
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    assert joins(module) == set()
    assert joins(module, torch.randn(2, 6)) == {("0", "1")}
    assert joins(module, torch.randn(2, 5, 6)) == set()
    flat = nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 5), nn.BatchNorm1d(5)
    )
    assert joins(flat) == {("1", "2"), ("4", "5")}
    rows = nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5))
    assert joins(rows) == set()
    assert joins(rows, torch.randn(2, 3, 9)) == {("0", "1")}
    assert joins(rows, torch.randn(3, 7)) == set()  # of one sample
    volumes = nn.Sequential(nn.Conv3d(1, 2, 1), nn.BatchNorm3d(2), nn.ConvTranspose3d(2, 3, 1), nn.BatchNorm3d(3))
    assert joins(volumes) == {("0", "1"), ("2", "3")}
    grouped = nn.Sequential(nn.ConvTranspose2d(4, 8, 1, groups=2), nn.BatchNorm2d(8))
    assert blocks(from_module(grouped)) == {}


def test_modules_that_cannot_be_traced(torch: Any) -> None:
    nn = torch.nn

    class Odd(nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    x = torch.randn(2, 3, 8, 8)
    body = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), Odd()
    )
    assert joins(body) == {("0", "1"), ("2.0", "2.1")}
    assert joins(body, x) == {("0", "1"), ("2.0", "2.1")}

    def whole(self: Any, x: Any) -> Any:
        return self.odd(self.body(x))

    def parts(self: Any, x: Any) -> Any:
        y = self.body[0](x)
        return self.odd(self.body[1](y) + y)

    layers = {"odd": Odd(), "body": nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))}
    # Only inputs show whether the sequence is called as such.
    assert joins(custom(torch, whole, **layers)) == set()
    assert joins(custom(torch, whole, **layers), x) == {("body.0", "body.1")}
    assert joins(custom(torch, parts, **layers), x) == set()


def test_an_argument_that_may_be_none(torch: Any) -> None:
    """A trace shows one of several paths through a module."""
    nn = torch.nn

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
            self.conv2, self.bn2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.fc, self.fbn = nn.Linear(6, 5), nn.BatchNorm1d(5)

        def forward(self, x: Any, scale: Any = None, shift: Any = None) -> Any:
            x = self.conv2(self.bn1(self.conv1(x)))
            if scale is not None:
                x = self.bn2(x) * scale
            x = self.fbn(self.fc(x.mean(1)[:, 0]))
            return x if shift is None else x + shift

    network = randomized(torch, Network())
    inputs = torch.randn(2, 1, 8, 8)
    assert joins(network) == {("conv1", "bn1")}
    assert joins(network, inputs) == joins(network, inputs, torch.ones(1)) == {("conv1", "bn1"), ("fc", "fbn")}
    expected = network(inputs)
    load_state(network, nnr.decode(nnr.encode(from_module(network), qp=-80, fold_batchnorm=True)))
    assert torch.allclose(network(inputs), expected, atol=1e-4)
    with pytest.raises(TypeError):
        from_module(network, (inputs,) * 4)


def test_a_module_with_many_arguments_that_may_be_none(torch: Any) -> None:
    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)

        def forward(self, x: Any, a: Any = None, b: Any = None, c: Any = None, d: Any = None, e: Any = None) -> Any:
            return self.bn(self.conv(x))

    assert joins(Network()) == set()


def test_values_that_a_type_does_not_have(torch: Any) -> None:
    """No integer changes, and no value is lost."""
    module = torch.nn.Module()
    for name, dtype in (("flag", torch.bool), ("small", torch.int8), ("large", torch.uint64)):
        module.register_buffer(name, torch.zeros(1, dtype=dtype))
    load_state(module, {"flag": np.ones(1, np.int64), "small": np.int64([-7]), "large": np.uint64([1 << 63])})
    assert [value.item() for value in module.buffers()] == [True, -7, 1 << 63]
    for name, value in (("flag", 2), ("small", 200), ("large", -1)):
        with pytest.raises(FormatError, match=f"tensor '{name}' has values that torch"):
            load_state(module, {name: np.array([value], np.int64)}, strict=False)
    with torch.device("meta"):
        nowhere = torch.nn.Linear(2, 2)
    with pytest.raises(FormatError, match="of the module is on device meta"):
        load_state(nowhere, {"weight": floats(2, 2), "bias": floats(2)})


def test_a_module_is_left_as_it_was(torch: Any) -> None:
    network = residual(torch).train()
    network.bn.eval()
    training = [layer.training for layer in network.modules()]
    before = copy.deepcopy(network.state_dict())
    from_module(network, torch.randn(1, 3, 16, 16))
    assert [layer.training for layer in network.modules()] == training
    assert same(torch, dict(before), dict(network.state_dict()))
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in network.modules())


# ------------------------------------------------------------------------------------------------ states
def tied(torch: Any) -> Any:
    module = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, 7))
    module[1].weight = module[0].weight
    return module


def test_tied_parameters(torch: Any) -> None:
    module = tied(torch)
    model = from_module(module)
    assert model.aliases == {"1.weight": "0.weight"}
    assert blocks(model) == {}
    decoded = nnr.decode(nnr.encode(model))
    other = tied(torch)
    load_state(other, decoded)
    assert other[1].weight is other[0].weight
    assert np.array_equal(other[0].weight.detach().numpy(), decoded["0.weight"])
    restored = loaded(torch, written(decoded))
    assert restored["0.weight"].data_ptr() == restored["1.weight"].data_ptr()
    module.load_state_dict(restored)


def test_the_model_has_the_memory_of_the_module(torch: Any) -> None:
    module = torch.nn.Linear(2, 2)
    model = from_module(module)
    with torch.no_grad():
        module.weight.fill_(3)
    assert (model["weight"] == 3).all()


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float64"])
def test_types_equal_the_module(torch: Any, name: str) -> None:
    module = torch.nn.Linear(3, 2).to(getattr(torch, name))
    data = nnr.encode(from_module(module), exact=True)
    for target in (module, torch.nn.Linear(3, 2)):
        before = target.weight.dtype
        load_state(target, nnr.decode(data))
        assert target.weight.dtype == before
        torch.testing.assert_close(target.weight, module.weight, check_dtype=False)


def test_states_that_do_not_fit(torch: Any) -> None:
    module = torch.nn.BatchNorm1d(3)
    before = copy.deepcopy(module.state_dict())
    tensors = {name: np.asarray(array).copy() for name, array in from_module(module).tensors.items()}
    for change, match in (
        ({"weight": floats(4)}, r"'weight' has shape \(4,\); the module has \(3,\)"),
        ({"weight": floats(3).astype(np.int32)}, "'weight' has dtype int32; the module has torch.float32"),
        ({"num_batches_tracked": np.float32(1)}, "has dtype float32; the module has torch.int64"),
        ({"weight": floats(3).astype("c8")}, "not support dtype complex64"),
        ({"more": floats(1)}, "unknown: 'more'"),
    ):
        with pytest.raises(nnr.FormatError, match=match):
            load_state(module, tensors | {"bias": floats(3)} | change)
    with pytest.raises(nnr.FormatError, match="missing: 'weight'"):
        load_state(module, {name: array for name, array in tensors.items() if name != "weight"})
    assert same(torch, dict(before), dict(module.state_dict()))
    load_state(module, {"weight": floats(1, 3), "more": floats(1)}, strict=False)
    assert module.weight.tolist() == [0, 1, 2]


def test_a_state_may_be_views_of_the_module(torch: Any) -> None:
    network = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    arrays = {name: value.numpy() for name, value in network.state_dict().items()}
    swap = {name: ("1" if name[0] == "0" else "0") + name[1:] for name in arrays}
    load_state(network, {name: arrays[swap[name]] for name in arrays})
    assert all(torch.equal(network.state_dict()[name], before[swap[name]]) for name in before)


def test_a_state_with_something_else(torch: Any) -> None:
    module = torch.nn.Linear(2, 2)
    module.register_buffer("mask", torch.eye(2).to_sparse())
    with pytest.raises(nnr.FormatError, match="'mask' is a sparse tensor"):
        from_module(module)
    module.mask = torch.ones(2, dtype=torch.complex64)
    with pytest.raises(nnr.FormatError, match=r"'mask' has dtype torch\.complex64"):
        from_module(module)
    for odd in (torch.nn.Linear(2, 2, device="meta"), torch.nn.LazyLinear(2)):
        with pytest.raises(nnr.FormatError, match=r"on device meta|UninitializedParameter"):
            from_module(odd)


def test_they_are_where_sensitivities_are(torch: Any) -> None:
    from nnr_codec.integrations import torch as integration

    assert integration.from_module is from_module
    assert integration.load_state is load_state
