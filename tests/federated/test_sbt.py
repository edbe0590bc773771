"""Updates with binary-ternary quantization: one magnitude for each matrix, with all tools, without lost updates."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_MPS, NNR_NDU
from nnr_codec.errors import EncodeError, MissingReferenceError
from nnr_codec.model import Array

from ..shared import mostly_slow

pytestmark = pytest.mark.medium

Update = dict[str, Array]
FL = nnr.EncoderConfig.preset("fl")


def rounds(count: int, *, keep: float = 0.0, seed: int = 7) -> Iterator[Update]:
    """Return updates of two matrices and a vector, each with ``keep`` of the one before."""
    rng = np.random.default_rng(seed)
    last: Update = {"w": np.zeros((60, 80), "f4"), "k": np.zeros((8, 4, 3, 3)), "b": np.zeros(60, "f4")}
    for _ in range(count):
        last = {
            name: (keep * array + (1 - keep) * rng.laplace(0, 1e-3, array.shape)).astype(array.dtype)
            for name, array in last.items()
        }
        yield last


def magnitudes(array: Array) -> list[float]:
    """Return the magnitudes that are not 0."""
    return sorted(set(np.abs(array[array != 0]).tolist()))


def header(data: bytes, name: str) -> Any:
    found = {unit.ndu.topology_elem_id: unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU}
    return found[name]


def pre(data: bytes) -> int:
    mps: Any = next(unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_MPS)
    return int(mps.nnr_pre_flag)


OPTIONS: list[dict[str, Any]] = [
    {},
    {"nnr_pre": True},
    {"nnr_pre": False, "sbt_ternary": 1},
    {"nnr_pre": True, "error_feedback": True, "sbt_ternary": 0},
    {"error_feedback": True, "parent": "sha256"},
    {"error_feedback": True, "parent": "external"},
    {"error_feedback": True, "structured_sparsity": 0.5},
    {"config": None, "temporal_context_modeling": True, "hist_dep_sig_prob": False, "qp": -56},
    {"config": nnr.EncoderConfig.preset("3gpp-incremental"), "error_feedback": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("keep", [0.0, 0.98])
def test_rounds_with_messages_that_get_lost(options: dict[str, Any], keep: float) -> None:
    given = {"config": FL, **options}
    encoder, decoder = nnr.UpdateEncoder(**given, sbt=0.9, device_id=3), nnr.UpdateDecoder()
    taken: list[bytes] = []
    for number, update in enumerate(rounds(14, keep=keep)):
        data = encoder.encode(update)
        if number in (4, 9):
            continue
        try:
            got = decoder.decode(data)
        except MissingReferenceError:
            assert number in (5, 10) and options.get("parent") != "external"
            encoder.reset()
            continue
        taken.append(data)
        for name in ("w", "k"):
            assert np.array_equal(got[name], encoder.decoded[name])
            assert got[name].dtype == update[name].dtype
            assert len(magnitudes(got[name])) == 1
            assert header(data, name).dq_flag == 0
            assert np.count_nonzero(got[name]) <= 0.1 * got[name].size
        assert len(magnitudes(got["b"])) > 1
        if options.get("nnr_pre") is not None:
            assert pre(data) <= options["nnr_pre"]
    assert len(taken) == (12 if options.get("parent") == "external" else 10)
    after = max(
        number for number, data in enumerate(taken) if not nnr.open(data).performance.base_model_id.split(".")[-1]
    )
    assert not nnr.verify(taken[-1], inputs=taken[after:-1]).violations


def test_levels_are_signs() -> None:
    encoder = nnr.UpdateEncoder(FL, sbt=0.95, sbt_ternary=1, nnr_pre=False)
    for update in rounds(3):
        encoder.encode(update)
        node = encoder.state.node((0, 0))
        assert node is not None
        assert sorted(set(node.levels[0].ravel().tolist())) == [-1, 0, 1]
        want = np.sort(np.abs(update["w"]), axis=None)[-240:].mean()
        assert magnitudes(encoder.decoded["w"]) == pytest.approx([want], rel=2.0**-8)


def test_binary_has_one_sign() -> None:
    encoder = nnr.UpdateEncoder(FL, sbt=0.95, sbt_ternary=0)
    for update in rounds(3):
        encoder.encode(update)
        for name in ("w", "k"):
            assert len(set(np.sign(encoder.decoded[name]).ravel().tolist())) == 2


def test_both_are_drawn() -> None:
    encoder = nnr.UpdateEncoder(FL, sbt=0.95)
    signs = []
    for update in rounds(40):
        encoder.encode(update)
        signs += [len(set(np.sign(encoder.decoded[name]).ravel().tolist())) for name in ("w", "k")]
    assert 20 < signs.count(3) < 60 and signs.count(2) == 80 - signs.count(3)


def test_bits_of_a_parameter() -> None:
    """The size is near the entropy of zeros and signs: for one in 50, and for half of them, all of one sign."""
    update = {"w": np.random.default_rng(1).laplace(0, 1e-3, (600, 500)).astype("f4")}
    for ternary, entropy in ((1, 0.161), (0, 0.081)):  # bits
        data = nnr.UpdateEncoder(FL, sbt=0.98, sbt_ternary=ternary).encode(update)
        assert 0.95 * entropy < 8 * len(data) / 300_000 < 1.06 * entropy


def test_however_few_they_are_none_is_left_out() -> None:
    """Each takes about 14 bits."""
    update = {"w": np.random.default_rng(1).laplace(0, 1e-3, (600, 500)).astype("f4")}
    encoder = nnr.UpdateEncoder(FL, sbt=0.9999, sbt_ternary=1)
    encoder.encode(update)
    assert np.count_nonzero(encoder.decoded["w"]) == 30


# ------------------------------------------------------------------------------------------ error feedback
@pytest.mark.parametrize("nnr_pre", mostly_slow(1, [None, True, False]))
@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_the_sum_of_updates_arrives(nnr_pre: bool | None, keep: float) -> None:
    """The sum lacks only the residual, which does not grow with the number of updates."""
    encoder, decoder = nnr.UpdateEncoder(FL, sbt=0.9, error_feedback=True, nnr_pre=nnr_pre), nnr.UpdateDecoder()
    wanted: dict[str, Any] = {}
    arrived: dict[str, Any] = {}
    missing = []
    for update in rounds(40, keep=keep):
        got = decoder.decode(encoder.encode(update))
        assert encoder.feedback
        for name, residual in encoder.feedback.residual.items():
            wanted[name] = wanted.get(name, 0.0) + update[name].astype("f8")
            arrived[name] = arrived.get(name, 0.0) + got[name].astype("f8")
            np.testing.assert_allclose(residual, wanted[name] - arrived[name], atol=1e-6)
        missing.append(float(np.square(wanted["w"] - arrived["w"]).mean()))
    assert max(missing[20:]) < 2 * max(missing[:20])
    assert max(missing) < 0.1 * np.square(wanted["w"]).mean()


# ------------------------------------------------------------------------------------------ residuals (9.2.4)
def test_9_2_4_residuals_change_nothing_but_the_step() -> None:
    """Decoded values are 0 or of one magnitude, a power of two times the previous one."""
    encoder, decoder = nnr.UpdateEncoder(FL, sbt=0.9, nnr_pre=True), nnr.UpdateDecoder()
    last: list[float] = []
    for number, update in enumerate(rounds(8)):
        scaled = {name: array * array.dtype.type(3.0**number) for name, array in update.items()}
        data = encoder.encode(scaled)
        assert pre(data) == (number > 0)
        found = magnitudes(decoder.decode(data)["w"])
        assert len(found) == 1
        if last:
            assert np.log2(found[0] / last[0]) % 1 == 0
            assert 2 <= found[0] / last[0] <= 4
        last = found


def test_9_2_4_residuals_are_coded_where_that_is_smaller() -> None:
    options: dict[str, Any] = {"temporal_context_modeling": False, "hist_dep_sig_prob": False, "sbt_ternary": 1}
    chosen, never, always = (
        nnr.UpdateEncoder(FL, sbt=0.9, nnr_pre=nnr_pre, **options) for nnr_pre in (None, False, True)
    )
    flags, sizes = [], []
    for update in rounds(12, keep=0.99):
        data = chosen.encode(update)
        flags.append(pre(data))
        sizes.append((len(data), len(never.encode(update)), len(always.encode(update))))
    assert flags[0] == 0 and sum(flags[-6:]) == 6
    assert sum(size[0] for size in sizes[-6:]) < 0.7 * sum(size[1] for size in sizes[-6:])
    unlike = nnr.UpdateEncoder(FL, sbt=0.9, **options)
    assert not any(pre(unlike.encode(update)) for update in rounds(4))


def test_9_2_4_an_update_before_that_was_none_of_these() -> None:
    """Its values are not multiples of a step size, so residuals have errors of up to half a step."""
    plain = nnr.UpdateEncoder(nnr.EncoderConfig.preset("update"))
    first, second, third = rounds(3)
    decoder = nnr.UpdateDecoder()
    decoder.decode(plain.encode(first))
    encoder = nnr.UpdateEncoder(FL, sbt=0.9, nnr_pre=True, error_feedback=True, state=decoder.state)
    for update in (second, third):
        assert np.array_equal(decoder.decode(encoder.encode(update))["w"], encoder.decoded["w"])
    assert encoder.feedback
    assert np.abs(encoder.feedback.residual["w"]).max() < 0.02


# ------------------------------------------------------------------------------------------ the same bytes
def test_encoders_go_on_alike() -> None:
    encoders = [nnr.UpdateEncoder(FL, sbt=0.95, error_feedback=True, base_model_id="m") for _ in range(3)]
    for update in rounds(5, keep=0.5):
        first, second, third = encoders
        data = first.encode(update)
        assert second.encode(update, jobs=2) == data
        assert third.encode(update) == data
        encoders[2] = pickle.loads(pickle.dumps(third))


def test_draws_differ_by_device_round_and_base() -> None:
    (update,) = rounds(1)

    def signs(**options: Any) -> list[int]:
        encoder = nnr.UpdateEncoder(FL, sbt=0.95, **options)
        found = []
        for _ in range(24):
            encoder.encode(update)
            found.append(len(set(np.sign(encoder.decoded["w"]).ravel().tolist())))
        return found

    one = signs()
    assert one == signs() and set(one) == {2, 3}
    assert one != signs(device_id=1) and one != signs(base_model_id="m")


def test_a_refused_update_leaves_the_encoder_as_it_was() -> None:
    encoder, same = (nnr.UpdateEncoder(FL, sbt=0.9, error_feedback=True) for _ in range(2))
    first, second = rounds(2)
    assert encoder.encode(first) == same.encode(first)
    with pytest.raises(EncodeError, match="'w'"):
        encoder.encode({**second, "w": np.full((60, 80), np.inf, "f4")})
    assert encoder.encode(second) == same.encode(second)


# ------------------------------------------------------------------------------------------ unaffected tensors
def test_vectors_integers_and_what_rules_keep() -> None:
    rng = np.random.default_rng(2)
    update = {
        "w": rng.normal(0, 1e-3, (20, 30)).astype("f4"),
        "kept": rng.normal(0, 1e-3, (20, 30)).astype("f4"),
        "exact": rng.normal(0, 1e-3, (20, 30)).astype("f4"),
        "b": rng.normal(0, 1e-3, 30).astype("f4"),
        "row": rng.normal(0, 1e-3, (1, 30)).astype("f4"),
        "steps": rng.integers(-5, 5, (4, 5)),
    }
    rules = [nnr.Rule("kept", reducible=False), nnr.Rule("exact", exact=True)]
    plain, coded = nnr.UpdateEncoder(rules=rules), nnr.UpdateEncoder(rules=rules, sbt=0.9)
    plain.encode(update)
    coded.encode(update)
    assert len(magnitudes(coded.decoded["w"])) == 1
    for name in update.keys() - {"w"}:
        assert np.array_equal(coded.decoded[name], plain.decoded[name]), name
    assert np.array_equal(coded.decoded["exact"], update["exact"])
    assert np.array_equal(coded.decoded["steps"], update["steps"])


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_magnitudes_that_are_no_steps(scale: float) -> None:
    """They are coded as without the option."""
    update = {"w": np.random.default_rng(2).normal(0, scale, (20, 30)).astype("f4")}
    plain, coded = nnr.UpdateEncoder(FL), nnr.UpdateEncoder(FL, sbt=0.9)
    assert coded.encode(update) == plain.encode(update)


def test_the_least_and_the_largest_steps() -> None:
    for exponent in (-32, 31):
        update = {"w": np.full((3, 4), 1.5 * 2.0**exponent, "f4")}
        encoder = nnr.UpdateEncoder(FL, sbt=0.5, nnr_pre=True)
        for factor in (1, -1, 1):
            encoder.encode({"w": np.float32(factor) * update["w"]})
            assert np.array_equal(encoder.decoded["w"], factor * update["w"])


def test_9_2_4_a_power_of_two_that_would_be_no_step() -> None:
    for first, second, got in ((1.25 * 2**30, 1.9 * 2**31, 1.25 * 2**31), (1.5 * 2**-32, 2**-32, 1.5 * 2**-32)):
        encoder = nnr.UpdateEncoder(FL, sbt=0.5, nnr_pre=True)
        for magnitude in (first, second):
            encoder.encode({"w": np.full((3, 4), magnitude)})
        assert magnitudes(encoder.decoded["w"]) == [got]


# ------------------------------------------------------------------------------------------ models
def test_updates_of_models(tmp_path: Path) -> None:
    base = {name: np.ones_like(array) for name, array in next(rounds(1)).items()}
    new = {name: base[name] + 30 * array for name, array in next(rounds(1, seed=3)).items()}
    data = nnr.encode_update(base, new, sbt=0.9)
    assert data == nnr.encode_update(base, new, sbt=0.9, jobs=2)
    assert len({nnr.encode_update(base, new, sbt=0.9, sbt_ternary=ternary) for ternary in (0, 1)}) == 2
    got = nnr.apply_update(base, data)
    for name in ("w", "k"):
        changed = got[name] != base[name]
        assert 0 < changed.mean() <= 0.1
        assert np.ptp(np.abs(got[name] - base[name])[changed]) < 1e-6
    assert np.abs(got["b"] - new["b"]).max() < 0.01
    for name, tensors in (("base", base), ("new", new)):
        np.savez(tmp_path / f"{name}.npz", **tensors)
    assert nnr.encode_update(tmp_path / "base.npz", tmp_path / "new.npz", sbt=0.9) == data


def test_ties_are_kept() -> None:
    rng = np.random.default_rng(2)
    for seed in range(8):  # whose names alone would select different quantizations
        one = rng.standard_normal((40, 50)).astype("f4")
        new = one + (one / 100).astype("f4") * rng.standard_normal((40, 50)).astype("f4")
        models = [nnr.Model({"a": w, f"b{seed}": w.copy()}, aliases={f"b{seed}": "a"}) for w in (one, new)]
        got = nnr.apply_update(models[0], nnr.encode_update(*models, sbt=0.9))
        assert got.aliases == {f"b{seed}": "a"}
        assert np.array_equal(got.tensors["a"], got.tensors[f"b{seed}"])


# ------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sbt": 1.5}, "sbt must be a number from 0 to 1, got 1.5"),
        ({"sbt": float("nan")}, "sbt must be a number from 0 to 1, got nan"),
        ({"sbt": "much"}, "sbt must be a number from 0 to 1, got 'much'"),
        ({"sbt": True}, "sbt must be a number from 0 to 1, got True"),
        ({"sbt": 0.9, "sbt_ternary": -0.1}, "sbt_ternary must be a number from 0 to 1, got -0.1"),
        ({"sbt": 0.9, "sbt_ternary": float("inf")}, "sbt_ternary must be a number from 0 to 1, got inf"),
        ({"sbt": 0.9, "sbt_ternary": [1]}, r"sbt_ternary must be a number from 0 to 1, got \[1\]"),
        ({"sbt_ternary": 0.5}, "sbt_ternary requires sbt"),
        ({"sbt": 0.9, "exact": True}, "exact=True keeps every bit, so sbt has no effect"),
    ],
)
def test_options_that_mean_nothing(options: dict[str, Any], message: str) -> None:
    (update,) = rounds(1)
    with pytest.raises(EncodeError, match=message):
        nnr.UpdateEncoder(**options)
    with pytest.raises(EncodeError, match=message):
        nnr.encode_update({name: 2 * array for name, array in update.items()}, update, **options)


def test_lossless_leaves_nothing_to_choose() -> None:
    with pytest.raises(EncodeError, match="so sbt has no effect"):
        nnr.encode_update({"a": np.ones(3)}, {"a": np.zeros(3)}, lossless=True, sbt=0.9)


@pytest.mark.parametrize("goal", [{"max_error": 1e-30}, {"snr": 400.0}, {"quality": 30.0}], ids=str)
def test_goals_are_about_the_other_tensors(goal: dict[str, float]) -> None:
    """A goal that no step size reaches must not make a matrix lossless, which float32 could not represent."""
    update = {"w": np.random.default_rng(0).normal(0, 1e-9, (30, 40))}
    encoder = nnr.UpdateEncoder(sbt=0.9, **goal)
    assert encoder.encode(update) == nnr.UpdateEncoder(sbt=0.9).encode(update)
    assert len(magnitudes(encoder.decoded["w"])) == 1
    base = {"w": np.zeros((30, 40))}
    data = nnr.encode_update(base, update, sbt=0.9, **goal)
    assert data == nnr.encode_update(base, update, sbt=0.9)
    assert len(magnitudes(nnr.apply_update(base, data)["w"])) == 1
