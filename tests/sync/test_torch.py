"""Modules of PyTorch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nnr_codec as nnr
from nnr_codec.sync import Publisher, Subscriber

from .support import model

torch: Any = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
pytestmark = [pytest.mark.torch, pytest.mark.medium]


class Net(torch.nn.Module):  # type: ignore[misc]
    """Layers with tied weights and a counter."""

    def __init__(self, seed: int, dtype: Any = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(50, 16)
        self.norm = torch.nn.BatchNorm1d(16)
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.to(dtype)
        self.head.weight = self.embedding.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.frozen(self.norm(self.embedding(x))))


def train(network: Net) -> None:
    """Take one step."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.arange(50)).float().square().mean().backward()
    optimizer.step()


def equal(network: Net, other: Net) -> bool:
    pairs = zip(network.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(one, two) for one, two in pairs)


def test_replica_follows_training_in_place(tmp_path: Path) -> None:
    network, replica = Net(1), Net(2)
    places = [parameter.data_ptr() for parameter in replica.parameters()]
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    for _ in range(4):
        train(network)
        publisher.publish(network)
        subscriber.poll()
        assert subscriber.load_into(replica) == ([], [])
        assert equal(network, replica) and replica.head.weight is replica.embedding.weight
    assert places == [parameter.data_ptr() for parameter in replica.parameters()]
    assert network.training


def test_state_dicts_and_modules_are_the_same_model(tmp_path: Path) -> None:
    network = Net(1)
    one, other = Publisher(tmp_path / "a").publish(network), Publisher(tmp_path / "b").publish(network.state_dict())
    assert one.identity == other.identity


def test_only_changed_tensors_are_copied_under_the_lock(tmp_path: Path) -> None:
    network, replica, second = Net(1), Net(2), Net(3)
    publisher, subscriber = Publisher(tmp_path / "s"), Subscriber(tmp_path / "s")
    held = 0
    copied: list[tuple[int, ...]] = []

    @contextmanager
    def lock() -> Iterator[None]:
        nonlocal held
        held += 1
        yield
        held -= 1

    copy = torch.Tensor.copy_

    def noted(self: Any, *arguments: Any) -> Any:
        assert held == 1
        copied.append(tuple(self.shape))
        return copy(self, *arguments)

    publisher.publish(network)
    subscriber.poll()
    subscriber.load_into(replica)
    with torch.no_grad():
        network.norm.weight += 1
    publisher.publish(network)
    subscriber.poll()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "copy_", noted)
        subscriber.load_into(replica, lock())
        assert copied == [(16,)]
        copied.clear()
        subscriber.load_into(replica, lock())
        assert not copied
        subscriber.load_into(second, lock())  # which has nothing yet
        assert len(copied) == len({parameter.data_ptr() for parameter in network.state_dict().values()})
    assert equal(network, replica) and equal(network, second)


def test_anchor_after_lost_updates_copies_only_changed_tensors() -> None:
    network, replica = Net(1), Net(2)
    publisher, subscriber = Publisher(None), Subscriber(None)
    subscriber.feed(publisher.publish(network).frame)
    subscriber.load_into(replica)
    first = dict(subscriber.tensors)
    train(network)
    publisher.publish(network)  # lost
    subscriber.feed(publisher.publish(network, anchor=True).frame)
    assert subscriber.tensors["frozen.weight"] is first["frozen.weight"]
    subscriber.load_into(replica)
    assert equal(network, replica)


def test_parameters_keep_their_type_and_prefix(tmp_path: Path) -> None:
    network, replica = Net(1), torch.nn.DataParallel(Net(2, torch.float32))
    subscriber = Subscriber(tmp_path / "s")
    Publisher(tmp_path / "s").publish(network)
    subscriber.poll()
    subscriber.load_into(replica)
    assert replica.module.embedding.weight.dtype == torch.float32
    assert torch.equal(replica.module.embedding.weight, network.embedding.weight.float())


def test_slices_fit_a_module_of_tensor_parallelism(tmp_path: Path) -> None:
    network, part = torch.nn.Linear(8, 6), torch.nn.Linear(8, 3)
    subscriber = Subscriber(tmp_path / "s", slices={"weight": (slice(3, 6),), "bias": (slice(3, 6),)})
    publisher = Publisher(tmp_path / "s")
    for _ in range(2):
        with torch.no_grad():
            network.weight += 1
        publisher.publish(network)
        subscriber.poll()
        subscriber.load_into(part)
        assert torch.equal(part.weight, network.weight[3:]) and torch.equal(part.bias, network.bias[3:])


def test_module_that_does_not_fit_is_unchanged(tmp_path: Path) -> None:
    network, subscriber = Net(1), Subscriber(tmp_path / "s")
    with pytest.raises(nnr.FormatError, match="no version yet"):
        subscriber.load_into(network)
    Publisher(tmp_path / "s").publish(network)
    subscriber.poll()
    other = torch.nn.Linear(16, 16).to(torch.bfloat16)
    before = other.weight.clone()
    with pytest.raises(nnr.FormatError, match="the tensors do not match the module"):
        subscriber.load_into(other)
    missing, unexpected = subscriber.load_into(other, strict=False)
    assert sorted(missing) == ["bias", "weight"] and len(unexpected) == 9
    wide = Net(2)
    wide.frozen = torch.nn.Linear(16, 17).to(torch.bfloat16)
    kept = wide.embedding.weight.clone()
    with pytest.raises(nnr.FormatError, match="has shape"):
        subscriber.load_into(wide)
    assert torch.equal(other.weight, before) and torch.equal(wide.embedding.weight, kept)


def test_versions_are_consistent_while_another_thread_loads(tmp_path: Path) -> None:
    """`load_into` in one thread and `poll` in another: the module always has one version."""
    network, subscriber = torch.nn.Linear(40, 40), Subscriber(tmp_path / "s")
    publisher, lock, stop = Publisher(tmp_path / "s"), threading.Lock(), threading.Event()
    replica = torch.nn.Linear(40, 40)
    mixed: list[float] = []

    def load() -> None:
        while not stop.is_set():
            subscriber.load_into(replica, lock)
            with lock:
                if replica.weight[0, 0] != replica.bias[0]:
                    mixed.append(float(replica.bias[0]))

    with torch.no_grad():
        network.weight.fill_(0), network.bias.fill_(0)
    publisher.publish(network)
    subscriber.poll()
    thread = threading.Thread(target=load)
    thread.start()
    for step in range(1, 20):
        with torch.no_grad():
            network.weight.fill_(step), network.bias.fill_(step)
        publisher.publish(network)
        subscriber.poll()
    stop.set()
    thread.join()
    assert not mixed


def test_tensors_of_numpy_fit_a_module(tmp_path: Path) -> None:
    subscriber, module = Subscriber(tmp_path / "s"), torch.nn.ParameterDict()
    Publisher(tmp_path / "s").publish(model(3))
    subscriber.poll()
    module["trained"] = torch.nn.Parameter(torch.zeros(30, 40))
    missing, _ = subscriber.load_into(module, strict=False)
    assert not missing and torch.equal(module["trained"], torch.from_numpy(model(3)["trained"]))
