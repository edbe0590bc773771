"""Tests of parameter reduction in training loops of PyTorch."""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.integrations.torch import load_state
from nnr_codec.integrations.training import LocalScaling, LowRank, Masks, Projection, compressibility_loss
from nnr_codec.reduction_steps import Step

pytestmark = pytest.mark.medium

SCALES = {"0.weight": "0.weight_scaling", "3.weight": "3.weight_scaling", "5.weight": "5.weight_scaling"}


class Digits(NamedTuple):
    """Trained network for digits of 8 by 8 pixels, and the data to continue its training."""

    module: Any
    train: Callable[..., None]
    accuracy: Callable[[Any], float]

    def decoded(self, data: bytes) -> Any:
        """Return the network with the tensors of a bitstream."""
        module = network(sys.modules["torch"])
        load_state(module, nnr.decode(data))
        return module

    def copy(self) -> Any:
        return copy.deepcopy(self.module)


@pytest.fixture(scope="module")
def torch() -> Any:
    """Return PyTorch, with one thread."""
    pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    found: Any = importlib.import_module("torch")
    before = found.get_num_threads()
    found.set_num_threads(1)
    yield found
    found.set_num_threads(before)


def network(torch: Any) -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(192, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


@pytest.fixture(scope="module")
def digits(torch: Any) -> Digits:
    datasets: Any = pytest.importorskip("sklearn.datasets", reason="the package scikit-learn is not installed")
    images, labels = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(images.reshape(-1, 1, 8, 8) / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    loss_of = torch.nn.functional.cross_entropy

    def train(module: Any, epochs: int, parameters: Any = None, term: Any = None, after: Any = None) -> None:
        generator = torch.Generator().manual_seed(1)
        optimizer = torch.optim.Adam(parameters or [p for p in module.parameters() if p.requires_grad], lr=2e-3)
        with after(optimizer) if after else nullcontext():
            for _ in range(epochs):
                for some in torch.randperm(1200, generator=generator).split(50):
                    loss = loss_of(module(x[some]), y[some])
                    optimizer.zero_grad()
                    (loss + term(module) if term else loss).backward()
                    optimizer.step()

    def accuracy(module: Any) -> float:
        with torch.no_grad():
            return float((module(x[1200:]).argmax(1) == y[1200:]).float().mean())

    torch.manual_seed(0)
    module = network(torch)
    train(module, 12)
    assert accuracy(module) > 0.93
    return Digits(module, train, accuracy)


def arrays(module: Any) -> dict[str, Any]:
    return {name: value.detach().numpy().copy() for name, value in module.state_dict().items()}


def value(tensor: Any) -> float:
    return float(tensor.detach())


def zeros(module: Any) -> float:
    weights = [array for array in arrays(module).values() if array.ndim > 1]
    return sum(array.size - np.count_nonzero(array) for array in weights) / sum(array.size for array in weights)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for function in (compressibility_loss, Masks, LocalScaling, LowRank):
        with pytest.raises(nnr.MissingDependencyError, match=r"nnr_codec\[torch\]"):
            function(None)


# ------------------------------------------------------------------------------------------------ a term of the loss
@pytest.mark.torch
def test_the_loss_by_hand(torch: Any) -> None:
    one, other = torch.tensor([[3.0, -4.0]], requires_grad=True), torch.tensor([0.0, 12.0])
    assert value(compressibility_loss(one)) == pytest.approx(7 / 5)
    assert value(compressibility_loss(one, gamma=0.5)) == pytest.approx(7 / 5 + 0.5 * 25 / 7)
    assert value(compressibility_loss([one, other])) == pytest.approx(19 / 13)
    assert value(compressibility_loss([one, other], together=False)) == pytest.approx((7 / 5 + 1) / 2)
    (gradient,) = torch.autograd.grad(compressibility_loss(one), one)
    assert gradient[0].tolist() == pytest.approx([1 / 5 - 7 * 3 / 125, -1 / 5 + 7 * 4 / 125])
    layer = torch.nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 0], [0, 4]]))
    assert value(compressibility_loss(layer)) == pytest.approx(7 / 5)  # biases are excluded


@pytest.mark.torch
def test_the_loss_of_zeros_and_of_nothing(torch: Any) -> None:
    weight = torch.zeros(2, 3, requires_grad=True)
    loss = compressibility_loss([weight])
    loss.backward()
    assert value(loss) == 0
    assert not weight.grad.any()
    assert value(compressibility_loss([weight, torch.ones(4)], together=False)) == pytest.approx(1)
    for given in ([], torch.nn.ReLU()):
        with pytest.raises(ValueError, match="weights must not be empty"):
            compressibility_loss(given)
    with pytest.raises(ValueError, match="gamma"):
        compressibility_loss(weight, -1)


@pytest.mark.torch
@pytest.mark.parametrize("together", [True, False])
def test_gradients_of_the_loss(torch: Any, together: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    one, other = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((4, 5), (6,)))

    def loss(*weights: Any) -> Any:
        return compressibility_loss(weights, 0.3, together=together)

    vectors = [np.append(one.numpy(), other.numpy())] if together else [one.numpy().ravel(), other.numpy()]
    norms = [(np.abs(vector).sum(), np.sqrt((vector**2).sum())) for vector in vectors]
    wanted = np.mean([sums / root + 0.3 * root**2 / sums for sums, root in norms])
    assert value(loss(one, other)) == pytest.approx(wanted, rel=1e-12)
    assert torch.autograd.gradcheck(loss, (one.requires_grad_(), other.requires_grad_()))


@pytest.mark.torch
@pytest.mark.parametrize("size", [1e-4, 300.0])
def test_the_loss_of_half_precision(torch: Any, size: float) -> None:
    """Its squares exceed float16."""
    for dtype in (torch.float16, torch.bfloat16):
        weight = torch.full((20, 50), size, dtype=dtype, requires_grad=True)
        loss = compressibility_loss(weight, gamma=1e-3)
        loss.backward()
        assert value(loss) == pytest.approx(1000**0.5 + 1e-3 * size, rel=1e-2)
        assert weight.grad.dtype == dtype
        assert weight.grad.isfinite().all()


@pytest.mark.torch
def test_what_the_loss_does(digits: Digits) -> None:
    """The file is smaller at the same step size, and sparsification costs less accuracy."""
    module, options = digits.copy(), {"quality": 15.0, "reduce": "sparsify(ratio=0.5)"}
    digits.train(module, 6, term=lambda it: 0.03 * compressibility_loss(it))
    plain, other = nnr.encode(arrays(digits.module), **options), nnr.encode(arrays(module), **options)
    assert len(other) < len(plain)
    assert digits.accuracy(digits.decoded(other)) > digits.accuracy(digits.decoded(plain)) - 0.01
    assert value(compressibility_loss(module)) < 0.8 * value(compressibility_loss(digits.module))


# ------------------------------------------------------------------------------------------------ after each step
@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 0.7},
        {"ratio": 0.3, "method": "rows", "tensors": "3.*"},
        {"ratio": 0.7, "method": "micro", "block": "4x1"},
    ],
    ids=str,
)
def test_masks(digits: Digits, options: dict[str, Any]) -> None:
    """The masks equal the zeros of the encoder, and stay the same; training restores the accuracy."""
    module, ratio = digits.copy(), options["ratio"]
    masks = Masks(module, **{name: option for name, option in options.items() if name != "ratio"})
    masks.sparsify(ratio)
    same = nnr.reduce(arrays(digits.module), [Step("sparsify", **options)]).model
    for name, array in arrays(module).items():
        np.testing.assert_array_equal(array, same[name], err_msg=name)
    before, least = digits.accuracy(module), zeros(module)
    where = {name: array == 0 for name, array in arrays(module).items()}
    digits.train(module, 5, after=masks.after)
    for name, array in arrays(module).items():
        assert not array[where[name]].any() or array.ndim < 2, name
    assert not np.array_equal(arrays(module)["5.bias"], same["5.bias"])  # biases have no masks
    assert zeros(module) >= least
    assert digits.accuracy(module) >= before
    assert digits.accuracy(module) > 0.9


@pytest.mark.torch
def test_masks_grow(digits: Digits) -> None:
    module = digits.copy()
    masks = Masks(module, tensors="3.*")
    found = []
    for progress in (0.0, 0.25, 0.1, 0.5, 2.0):
        masks.grow(0.8, progress)
        found.append(float((arrays(module)["3.weight"] == 0).mean()))
    assert found == pytest.approx([0, 0.4625, 0.4625, 0.7, 0.8], abs=0.001)
    assert arrays(module)["0.weight"].all()
    assert {name: mask.shape for name, mask in masks.masks.items()} == {"3.weight": (48, 192)}
    digits.train(module, 1)  # without masks
    assert (arrays(module)["3.weight"] == 0).mean() < 0.4
    masks.project()
    assert (arrays(module)["3.weight"] == 0).mean() == pytest.approx(0.8, abs=0.001)


@pytest.mark.torch
def test_masks_of_outputs_of_a_transposed_convolution(torch: Any) -> None:
    module = torch.nn.ConvTranspose2d(4, 6, 3)
    Masks(module, method="rows").sparsify(0.5)
    rows = module.weight.detach().abs().sum(dim=(0, 2, 3))
    assert int((rows == 0).sum()) == 3


@pytest.mark.torch
def test_projections(digits: Digits) -> None:
    module, steps = digits.copy(), "unify(ratio=0.8)"
    digits.train(module, 4, after=Projection(module, steps).after)
    again = nnr.reduce(arrays(module), "unify(threshold=1e-6)").model
    assert nnr.compare_models(arrays(module), again).snr > 100  # blocks have one magnitude already
    plain = digits.decoded(nnr.encode(arrays(digits.module), reduce=steps, qp=-40))
    assert digits.accuracy(module) >= digits.accuracy(plain) - 0.005
    for wrong in ("unite", "unify(size=3)"):
        with pytest.raises(nnr.EncodeError, match=r"unknown step 'unite'|'size'"):
            Projection(module, wrong)


@pytest.mark.torch
def test_a_projection_to_a_low_rank(digits: Digits) -> None:
    module = digits.copy()
    Projection(module, "lowrank(rank=5)").project()
    same = nnr.reduce(arrays(digits.module), "lowrank(rank=5)").model
    for name, array in arrays(module).items():
        np.testing.assert_allclose(array, same[name], atol=1e-6, err_msg=name)
    assert np.linalg.matrix_rank(arrays(module)["3.weight"], tol=1e-4) == 5


@pytest.mark.torch
@pytest.mark.parametrize("options", [{"ratio": 0.5}, {"threshold": 0.1}, {"method": "best"}, {"no": 1}], ids=str)
def test_options_that_masks_do_not_have(torch: Any, options: dict[str, Any]) -> None:
    with pytest.raises(nnr.EncodeError, match=r"added later|no method|no option"):
        Masks(torch.nn.Linear(3, 3), **options)


@pytest.mark.torch
def test_optimizers_are_left_as_they_were(torch: Any, digits: Digits) -> None:
    module = digits.copy()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    masks = Masks(module)

    def fail() -> None:
        with masks.after(optimizer):
            assert optimizer._optimizer_step_post_hooks
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not optimizer._optimizer_step_post_hooks


# ------------------------------------------------------------------------------------------------ local scaling
@pytest.mark.torch
def test_local_scaling(digits: Digits) -> None:
    """The levels equal the encoder's levels before and after training; only scales and vectors change."""
    module = digits.copy()
    scaling = LocalScaling(module, quality=8.0, effort=1)
    assert not any(
        layer.weight.requires_grad and layer.parametrizations.weight.original.requires_grad
        for layer in (module[0], module[3], module[5])
    )
    first = nnr.decode(nnr.encode(scaling.model(), scaling.config), raw=True)
    assert {name for name in first if "scaling" in name} == set(SCALES.values())
    before = digits.accuracy(module)
    digits.train(module, 6, parameters=scaling.scales)
    data = nnr.encode(scaling.model(), scaling.config)
    assert not nnr.verify(data).violations
    raw, got = nnr.decode(data, raw=True), nnr.decode(data)
    assert set(got) == set(arrays(digits.module))
    for name, scale in SCALES.items():
        np.testing.assert_array_equal(raw[name], first[name])
        np.testing.assert_array_equal(raw[name], scaling.model()[name])
        assert not np.array_equal(raw[scale], first[scale])
        np.testing.assert_allclose(raw[scale], scaling.model()[scale], atol=2.0**-5)
    assert digits.accuracy(module) >= before
    assert digits.accuracy(digits.decoded(data)) == pytest.approx(digits.accuracy(module), abs=0.01)
    scaling.finish()
    assert set(arrays(module)) == set(arrays(digits.module))
    for name in SCALES:
        np.testing.assert_allclose(arrays(module)[name], got[name], rtol=0.05, atol=1e-6)


@pytest.mark.torch
def test_a_smaller_file_at_the_same_accuracy(digits: Digits) -> None:
    """Large step sizes with trained scales take fewer bytes than small ones without, at no lower accuracy."""
    module = digits.copy()
    scaling = LocalScaling(module, quality=6.0)
    digits.train(module, 8)
    small = nnr.encode(scaling.model(), scaling.config)
    plain = {quality: nnr.encode(arrays(digits.module), quality=quality) for quality in (6.0, 9.0, 12.0)}
    found = digits.accuracy(digits.decoded(small))
    assert found > digits.accuracy(digits.decoded(plain[6.0]))
    assert len(small) < len(plain[9.0])
    assert found >= digits.accuracy(digits.decoded(plain[9.0]))


@pytest.mark.torch
def test_scales_at_first(torch: Any) -> None:
    """The initial scales minimize the squared error."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.ConvTranspose1d(3, 5, 8), torch.nn.Conv1d(5, 4, 3, groups=1))
    weight = module[0].weight.detach().numpy().astype("f8").copy()
    scaling = LocalScaling(module, qp=-12, tensors="0*", rate=0)
    levels = scaling.model()["0.weight"].astype("f8")
    assert scaling.blocks[0].axis == 1
    scales = (weight * levels).sum(axis=(0, 2)) / (levels**2).sum(axis=(0, 2))
    np.testing.assert_allclose(scaling.model()["0.weight_scaling"], scales, rtol=1e-5)
    got = nnr.decode(nnr.encode(scaling.model(), scaling.config))["0.weight"]
    np.testing.assert_allclose(got, module[0].weight.detach().numpy(), rtol=0.05, atol=1e-6)


@pytest.mark.torch
def test_tensors_that_are_not_scaled(torch: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3))
    module[1].weight = module[0].weight  # both have them
    assert [block.weight for block in LocalScaling(module).blocks] == ["2.weight"]
    for given, options in ((torch.nn.ReLU(), {}), (torch.nn.Linear(2, 2), {"tensors": "no"})):
        with pytest.raises(nnr.EncodeError, match="no layer that matches"):
            LocalScaling(given, **options)
    with pytest.raises(nnr.EncodeError, match="reduction steps"):
        LocalScaling(torch.nn.Linear(2, 2), reduce="sparsify(ratio=0.5)")
    with pytest.raises(nnr.EncodeError, match="tensor 'weight' is exact"):
        LocalScaling(torch.nn.Linear(3, 3), exact=True)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("quality", [5.0, 46.0])
def test_levels_of_other_types(torch: Any, dtype: str, quality: float) -> None:
    """They are coded unchanged, although bfloat16 cannot represent them."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 1), torch.nn.ConvTranspose2d(3, 5, 3))
    module.to(getattr(torch, dtype))
    scaling = LocalScaling(module, quality=quality)
    coded, raw = scaling.model(), nnr.decode(nnr.encode(scaling.model(), scaling.config), raw=True)
    for block in scaling.blocks:
        np.testing.assert_array_equal(raw[block.weight], coded[block.weight], err_msg=block.weight)
    level = module[0].parametrizations.weight.original.double().numpy()
    np.testing.assert_allclose(level, coded["0.weight"], rtol=2.0**-8)
    assert module[0].weight.dtype == getattr(torch, dtype)


@pytest.mark.torch
def test_afterwards_weights_are_trained_as_before(torch: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(9, 8), torch.nn.Linear(8, 8))
    module[1].weight.requires_grad_(False)
    for made, options in ((LocalScaling, {"quality": 8.0}), (LowRank, {"rank": 2})):
        parts: Any = made(module, **options)
        assert "0.weight" not in module.state_dict()
        parts.finish()
        assert [module[k].weight.requires_grad for k in (0, 1)] == [True, False]
        same = arrays(module)
        assert {name: array.tolist() for name, array in parts.model().tensors.items()} == {
            name: array.tolist() for name, array in same.items()
        }


@pytest.mark.torch
def test_scales_where_all_else_is_exact(torch: Any) -> None:
    torch.manual_seed(0)
    module = torch.nn.Linear(40, 30)
    scaling = LocalScaling(module, exact=True, rules=(nnr.Rule("weight", exact=False, quality=9.0),))
    got = nnr.decode(nnr.encode(scaling.model(), scaling.config))
    np.testing.assert_array_equal(got["bias"], module.bias.detach().numpy())
    np.testing.assert_allclose(got["weight"], module.weight.detach().numpy(), rtol=0.05)


@pytest.mark.torch
def test_scales_with_a_target(torch: Any) -> None:
    """Scales of ones would be coded as few values, and no block would contain scales."""
    torch.manual_seed(0)
    scaling = LocalScaling(torch.nn.Linear(40, 30), target_ratio=0.2)
    assert len(nnr.encode(scaling.model(), scaling.config)) < 0.25 * 4 * 1230


# ------------------------------------------------------------------------------------------------ low rank
@pytest.mark.torch
def test_low_rank(digits: Digits) -> None:
    """Factors are trained and coded unchanged, with the ranks of the encoder."""
    module = digits.copy()
    parts = LowRank(module, error=0.5)
    assert parts.ranks
    reduced = nnr.reduce(arrays(digits.module), "lowrank(error=0.5)").model
    for name, rank in parts.ranks.items():
        matrix = reduced[name].reshape(len(reduced[name]), -1)
        assert np.linalg.matrix_rank(matrix, tol=1e-4 * np.abs(matrix).max()) == rank
        layer = module.get_submodule(name.removesuffix(".weight"))
        np.testing.assert_allclose(layer.weight.detach().numpy(), reduced[name], atol=1e-3)
    before = digits.accuracy(module)
    digits.train(module, 6)
    assert digits.accuracy(module) >= before
    data = nnr.encode(parts.model(), quality=30.0)
    assert not nnr.verify(data).violations
    assert len(data) < len(nnr.encode(arrays(digits.module), quality=30.0))
    assert set(nnr.decode(data)) == set(arrays(digits.module))
    assert digits.accuracy(digits.decoded(data)) == pytest.approx(digits.accuracy(module), abs=0.02)
    parts.finish()
    assert set(arrays(module)) == set(arrays(digits.module))
    assert module[3].weight.shape == (48, 192)


@pytest.mark.torch
def test_low_rank_of_a_convolution(torch: Any) -> None:
    torch.manual_seed(0)
    module = torch.nn.Conv2d(8, 16, 3)
    parts = LowRank(module, rank=2)
    data = nnr.encode(parts.model(), qp=-60)
    got = nnr.decode(data)["weight"]
    assert got.shape == (16, 8, 3, 3)
    np.testing.assert_allclose(got, module.weight.detach().numpy(), atol=1e-3)
    with pytest.raises(nnr.EncodeError, match="displacement"):
        LowRank(torch.nn.Linear(9, 9), displacement=True)
