"""Successive updates: chain_updates and squash_updates."""

from __future__ import annotations

import io
from collections.abc import Callable
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.federated.chain import base_of, links
from nnr_codec.model import Array, Block

Models = list[dict[str, Array]]


def rounds(count: int = 4) -> Models:
    """Return a model and its versions after training."""
    rng = np.random.default_rng(5)
    model: dict[str, Array] = {
        "a": rng.normal(0, 0.1, (12, 20)).astype("f4"),
        "b": rng.normal(0, 0.1, 12).astype("f2"),
        "steps": np.array(100),
        "frozen": np.arange(6.0),
    }
    models = [model]
    for k in range(1, count):
        model = {**model, "a": model["a"] + rng.normal(0, 1e-3, (12, 20)).astype("f4"), "steps": model["steps"] + 7}
        if k == 2:
            model |= {"b": model["b"] * np.float16(1.01), "new": np.ones((2, 2), "f4")}
        models.append(model)
    return models


def lossless(models: Models) -> list[bytes]:
    """Return the updates from each model to the next one."""
    return [nnr.encode_update(base, new, lossless=True) for base, new in pairwise(models)]


def short(model: Any) -> str:
    """Return the name of a model in messages."""
    return f"{nnr.identity(model)[:19]}..."


MODELS = rounds()
UPDATES = lossless(MODELS)


def test_a_chain_leads_to_the_last_model() -> None:
    got = nnr.chain_updates(MODELS[0], UPDATES)
    assert isinstance(got, dict)
    assert nnr.compare_models(MODELS[-1], got).same()
    assert nnr.identity(got) == nnr.identity(MODELS[-1])


@pytest.mark.parametrize("one", [UPDATES[0], "update.nnr", Path("update.nnr")])
def test_updates_are_several(one: Any) -> None:
    with pytest.raises(TypeError, match="a list of bitstreams"):
        nnr.chain_updates(MODELS[0], one)


def test_each_model_on_the_way() -> None:
    for k, model in enumerate(links(MODELS[0], UPDATES), 1):
        assert nnr.compare_models(MODELS[k], model).same()
    assert k == len(UPDATES)


@pytest.mark.parametrize("kind", ["dict", "Model", "path", "file"])
def test_kinds_of_bases(kind: str, tmp_path: Path) -> None:
    model = nnr.Model(MODELS[0], metadata={"by": "me"}, format="npz")
    nnr.save(model.tensors, tmp_path / "m.npz")
    with (tmp_path / "m.npz").open("rb") as file:
        bases: dict[str, Any] = {"dict": MODELS[0], "Model": model, "path": tmp_path / "m.npz", "file": file}
        got = nnr.chain_updates(bases[kind], UPDATES)
    assert isinstance(got, dict if kind == "dict" else nnr.Model)
    assert nnr.identity(got) == nnr.identity(MODELS[-1])
    if kind == "Model":
        assert isinstance(got, nnr.Model)
        assert got.metadata == {"by": "me"}


def test_kinds_of_updates(tmp_path: Path) -> None:
    path = tmp_path / "d.nnr"
    path.write_bytes(UPDATES[0])
    for update in (path, str(path), io.BytesIO(UPDATES[0]), bytearray(UPDATES[0]), memoryview(UPDATES[0])):
        assert nnr.identity(nnr.chain_updates(MODELS[0], [update, *UPDATES[1:]])) == nnr.identity(MODELS[-1])
    assert nnr.identity(nnr.chain_updates(MODELS[0], iter(UPDATES))) == nnr.identity(MODELS[-1])


def test_no_update_at_all() -> None:
    assert nnr.chain_updates(MODELS[0], []) == MODELS[0]
    squashed = nnr.squash_updates(MODELS[0], [])
    assert nnr.compare_models(nnr.apply_update(MODELS[0], squashed), MODELS[0]).same()


def test_lossy_updates_continue_what_decoders_have() -> None:
    first = nnr.encode_update(MODELS[0], MODELS[1])
    decoded = nnr.apply_update(MODELS[0], first)
    second = nnr.encode_update(decoded, MODELS[2])
    assert nnr.identity(nnr.chain_updates(MODELS[0], [first, second])) == nnr.identity(
        nnr.apply_update(decoded, second)
    )
    with pytest.raises(nnr.MissingReferenceError, match="the model after update 1 is"):
        nnr.chain_updates(MODELS[0], [first, UPDATES[1]])


# ------------------------------------------------------------------------------------------------ the wrong order
@pytest.mark.parametrize("order", [order for order in permutations(range(3)) if order != (0, 1, 2)])
def test_a_wrong_order_names_the_required_predecessor(order: tuple[int, ...]) -> None:
    wrong = next(k for k in range(3) if order[k] != k)
    names = ["old.npz", *(f"d{k}.nnr" for k in order)]
    before = f"the model after d{order[wrong - 1]}.nnr" if wrong else "old.npz"
    leader = f"d{order[wrong] - 1}.nnr" if order[wrong] else "old.npz"
    with pytest.raises(nnr.MissingReferenceError) as caught:
        list(links(MODELS[0], [UPDATES[k] for k in order], names=names))
    assert str(caught.value) == (
        f"d{order[wrong]}.nnr is an update of {short(MODELS[order[wrong]])}, "
        f"{before} is {short(MODELS[wrong])}; it follows {leader}"
    )


def test_a_missing_link() -> None:
    with pytest.raises(nnr.MissingReferenceError) as caught:
        nnr.chain_updates(MODELS[0], [UPDATES[0], UPDATES[2]])
    assert str(caught.value) == (
        f"update 2 is an update of {short(MODELS[2])}, the model after update 1 is {short(MODELS[1])}; "
        "none of the other updates produces that model"
    )


def test_a_repeated_link() -> None:
    with pytest.raises(nnr.MissingReferenceError, match=r"the model after update 1 is .*; it follows the base"):
        nnr.chain_updates(MODELS[0], [UPDATES[0], UPDATES[0]])


def test_the_wrong_base(tmp_path: Path) -> None:
    path = tmp_path / "d.nnr"
    path.write_bytes(UPDATES[1])
    with pytest.raises(nnr.MissingReferenceError) as caught:
        nnr.chain_updates(MODELS[0], [path])
    message = f"{path} is an update of {short(MODELS[1])}, the base is {short(MODELS[0])}"
    assert str(caught.value) == f"{message}; use the model that it updates, or add the updates in between"


def test_the_way_back_is_a_way() -> None:
    """Updates may lead to an earlier model; the search for a path still ends."""
    there, back = UPDATES[0], nnr.encode_update(MODELS[1], MODELS[0], lossless=True)
    assert nnr.identity(nnr.chain_updates(MODELS[0], [there, back, there])) == nnr.identity(MODELS[1])
    with pytest.raises(nnr.MissingReferenceError, match=r"update 3 .*; none of the other updates produces that model"):
        nnr.chain_updates(MODELS[0], [there, back, UPDATES[2]])
    with pytest.raises(nnr.MissingReferenceError, match=r"update 3 .*; it follows update 1"):
        nnr.chain_updates(MODELS[0], [there, back, back])


def test_a_damaged_update_among_the_candidates() -> None:
    """It leads nowhere, and is not reported as the fault of the first one."""
    damaged = UPDATES[0][:-9] + bytes(byte ^ 0xFF for byte in UPDATES[0][-9:])
    with pytest.raises(nnr.MissingReferenceError, match=r"update 1 .*; none of the other updates produces that model"):
        nnr.chain_updates(MODELS[0], [UPDATES[1], damaged[: len(damaged) // 2]])


@pytest.mark.parametrize(
    ("update", "error", "message"),
    [
        (UPDATES[0][:-9], nnr.TruncatedError, "the unit has"),
        (b"", nnr.ElementError, "no unit"),
        (nnr.encode(MODELS[0]), nnr.FormatError, "not an update"),
    ],
)
def test_other_errors_have_the_name_in_a_note(update: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        list(links(MODELS[0], [update], names=["old", "new"]))
    assert caught.value.__notes__ == ["new"]


def test_limits() -> None:
    with pytest.raises(nnr.LimitError):
        nnr.chain_updates(MODELS[0], UPDATES, limits=nnr.Limits(max_units=2))


# ------------------------------------------------------------------------------------------------ folded
def with_batchnorm(scale: float) -> nnr.Model:
    rng = np.random.default_rng(3)
    weight, mean = rng.normal(0, 1, (4, 6)), rng.normal(0, 1, 4)
    tensors = {
        "w": weight + scale,
        "gamma": np.ones(4) + scale,
        "beta": np.zeros(4),
        "mean": mean + scale,
        "var": np.full(4, 2.0),
    }
    block = Block("w", gamma="gamma", beta="beta", mean="mean", var="var", epsilon=1e-5)
    return nnr.Model({name: array.astype("f4") for name, array in tensors.items()}, blocks=[block])


def test_folded_bases() -> None:
    models = [with_batchnorm(scale) for scale in (0, 0.1, 0.2)]
    first = nnr.encode_update(models[0], models[1], fold_batchnorm=True)
    decoded = nnr.apply_update(models[0], first)
    second = nnr.encode_update(decoded, models[2], fold_batchnorm=True)
    got = nnr.chain_updates(models[0], [first, second])
    assert nnr.identity(got) == nnr.identity(nnr.apply_update(decoded, second))
    with pytest.raises(nnr.MissingReferenceError, match=r"update 1 .*; it follows update 2"):
        nnr.chain_updates(models[0], [second, first])
    with pytest.raises(nnr.MissingReferenceError, match=r"update 2 .*; it follows the base"):
        nnr.chain_updates(models[0], [first, first])


# ------------------------------------------------------------------------------------------------ with a memory
def sent(base_model_id: str) -> tuple[list[bytes], dict[str, Array]]:
    """Return bitstreams of an encoder with a state, and the sum of their contents."""
    encoder, total = nnr.UpdateEncoder(base_model_id=base_model_id), dict(MODELS[0])
    messages = []
    for before, after in pairwise(MODELS):
        messages.append(encoder.encode({"a": after["a"] - before["a"]}))
        total["a"] = total["a"] + encoder.decoded["a"]
    return messages, total


@pytest.mark.parametrize("base_model_id", ["", "release 7", nnr.identity(MODELS[0])])
def test_bitstreams_that_continue_each_other(base_model_id: str) -> None:
    messages, total = sent(base_model_id)
    assert nnr.compare_models(nnr.chain_updates(MODELS[0], messages), total).same()
    with pytest.raises(nnr.MissingReferenceError, match="bitstream 2 of device_id 0 continues number 1") as caught:
        nnr.chain_updates(MODELS[0], messages[1:])
    assert caught.value.__notes__ == ["update 1"]


def test_bitstreams_that_continue_each_other_have_a_base() -> None:
    messages, _ = sent(nnr.identity(MODELS[0]))
    with pytest.raises(nnr.MissingReferenceError, match=r"update is for the model .*; the base is") as caught:
        nnr.chain_updates(MODELS[1], messages)
    assert caught.value.__notes__ == ["update 1"]


# ------------------------------------------------------------------------------------------------ one of several
def test_a_squashed_chain_leads_to_the_same_model() -> None:
    squashed = nnr.squash_updates(MODELS[0], UPDATES[:2])
    assert base_of(squashed) == nnr.identity(MODELS[0])
    assert nnr.compare_models(nnr.apply_update(MODELS[0], squashed), MODELS[2]).same()
    assert nnr.identity(nnr.chain_updates(MODELS[0], [squashed, UPDATES[2]])) == nnr.identity(MODELS[-1])


@pytest.mark.parametrize("options", [{"effort": 1}, {"scan_order": 1}, {"exact": True}, {"max_unit_size": 300}])
def test_options_without_a_goal_lose_nothing(options: dict[str, Any]) -> None:
    for squashed in (
        nnr.squash_updates(MODELS[0], UPDATES, **options),
        nnr.squash_updates(MODELS[0], UPDATES, nnr.EncoderConfig(**options)),
    ):
        assert nnr.identity(nnr.apply_update(MODELS[0], squashed)) == nnr.identity(MODELS[-1])


Given = Callable[[], dict[str, Any]]


@pytest.mark.parametrize(
    "given",
    [
        lambda: {"quality": 20},
        lambda: {"qp": -36},
        lambda: {"target_size": 200},
        lambda: {"config": nnr.EncoderConfig.preset("update")},
        lambda: {"config": nnr.EncoderConfig(exact=False)},
    ],
)
def test_a_goal_is_heeded(given: Given) -> None:
    squashed = nnr.squash_updates(MODELS[0], UPDATES, **given())
    assert len(squashed) < len(nnr.squash_updates(MODELS[0], UPDATES))
    found = nnr.compare_models(MODELS[-1], nnr.apply_update(MODELS[0], squashed))
    assert not found.same()
    assert found.snr > 20


def test_a_goal_is_that_of_updates() -> None:
    for options in ({"exact": False}, {"quality": 20}, {"qp": -36, "effort": 2}):
        expected = nnr.encode_update(MODELS[0], MODELS[-1], **options)
        assert nnr.squash_updates(MODELS[0], UPDATES, **options) == expected


def test_exact_but_for_some() -> None:
    rule = nnr.Rule("a", exact=False, quality=20)
    got = nnr.apply_update(MODELS[0], nnr.squash_updates(MODELS[0], UPDATES, rules=[rule]))
    found = nnr.compare_models(MODELS[-1], got)
    assert [name for name, one in found.tensors.items() if one.count] == ["a"]
    with pytest.raises(nnr.EncodeError, match="keeps every bit"):
        nnr.squash_updates(MODELS[0], UPDATES, rules=[nnr.Rule("a", quality=20)])


def test_the_same_bytes() -> None:
    assert nnr.squash_updates(MODELS[0], UPDATES) == nnr.squash_updates(MODELS[0], UPDATES, jobs=2)
