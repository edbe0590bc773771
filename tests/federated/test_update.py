"""UpdateEncoder and encode_update: contents and tools of their bitstreams (6.4.3.7, 9.2.4, 10.2.1.4)."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from hashlib import sha256, sha512
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import (
    ICNN_NDU_EXT,
    ICNN_NDU_ID,
    ICNN_NDU_PL_SHA256,
    ICNN_NDU_PL_SHA512,
    NNR_MPS,
    NNR_NDU,
)
from nnr_codec.errors import EncodeError, MissingReferenceError

from .support import content

Update = dict[str, np.ndarray[Any, Any]]


def rounds(count: int, *, keep: float = 0.0, part: float = 0.1) -> Iterator[Update]:
    """Return updates with the same nonzero ``part`` of the parameters, each with ``keep`` of the one before."""
    rng = np.random.default_rng(7)
    mask = rng.random((60, 80)) < part
    last = np.zeros((60, 80), np.float32)
    for _ in range(count):
        last = (mask * rng.standard_normal((60, 80)) * 1e-3 + keep * last).astype(np.float32)
        yield {"w": last, "b": rng.standard_normal(60).astype(np.float32) * np.float32(1e-4)}


def headers(data: bytes) -> dict[str, Any]:
    return {unit.ndu.topology_elem_id: unit.ndu for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_NDU}


def parameters(data: bytes) -> Any:
    return next(unit.payload for unit in nnr.units(data) if unit.header.nnr_unit_type == NNR_MPS)


def sizes(**options: Any) -> list[int]:
    encoder = nnr.UpdateEncoder(**options)
    return [len(encoder.encode(update)) for update in rounds(4)]


# ------------------------------------------------------------------------------------------ headers
def test_6_4_3_7_nodes_follow_each_other() -> None:
    encoder = nnr.UpdateEncoder(device_id=5)
    for depth, update in enumerate(rounds(3), 1):
        for number, header in enumerate(headers(encoder.encode(update)).values()):
            assert (header.node_id_present_flag, header.device_id, header.parameter_id) == (1, 5, number)
            assert (header.put_node_depth, header.parent_node_id_type) == (depth, ICNN_NDU_ID)
            assert header.parent_device_id == 5


def test_6_4_4_3_the_parameter_set_says_that_it_is_an_update() -> None:
    encoder = nnr.UpdateEncoder(device_id=5, base_model_id="digits")
    told = [parameters(encoder.encode(update)) for update in rounds(2)]
    assert [mps.mps_parent_signalling_enabled_flag for mps in told] == [1, 1]
    assert told[0].base_model_id == "digits#5.1."
    assert told[1].base_model_id.startswith("digits#5.2.")


@pytest.mark.parametrize(
    ("parent", "hashed", "kind"), [("sha256", sha256, ICNN_NDU_PL_SHA256), ("sha512", sha512, ICNN_NDU_PL_SHA512)]
)
def test_table_8_parents_are_named_by_hashes(parent: str, hashed: Any, kind: int) -> None:
    encoder, decoder = nnr.UpdateEncoder(parent=parent), nnr.UpdateDecoder()
    first, second = [encoder.encode(update) for update in rounds(2)]
    assert headers(first)["w"].parent_node_id_type == ICNN_NDU_EXT  # there is nothing yet
    payload = next(unit.content for unit in nnr.units(first) if unit.header.nnr_unit_type == NNR_NDU)
    header = headers(second)["w"]
    assert header.parent_node_id_type == kind
    digest = getattr(header, f"parent_node_payload_{parent}")
    assert digest.to_bytes(hashed().digest_size, "big") == hashed(payload).digest()
    decoder.decode(first)
    assert np.array_equal(decoder.decode(second)["w"], encoder.decoded["w"])
    with pytest.raises(MissingReferenceError, match="repeated"):
        decoder.decode(second)


def test_table_8_the_payload_of_a_base_model_is_a_parent() -> None:
    base = nnr.encode({"w": np.ones((60, 80), np.float32), "b": np.ones(60, np.float32)})
    encoder, decoder = nnr.UpdateEncoder(parent="sha256"), nnr.UpdateDecoder()
    encoder.adopt(base)
    data = encoder.encode(next(rounds(1)))
    assert headers(data)["w"].parent_node_id_type == ICNN_NDU_PL_SHA256
    with pytest.raises(MissingReferenceError, match="sha256"):
        decoder.decode(data)
    decoder.decode(base)
    decoder.decode(data)


def test_table_8_external_parents_need_no_state() -> None:
    encoder = nnr.UpdateEncoder(parent="external")
    for data in [encoder.encode(update) for update in rounds(3)][::-1]:
        assert headers(data)["w"].node_id_present_flag == 0
        assert "w" in nnr.UpdateDecoder().decode(data)


def test_after_reset_nothing_is_referred_to() -> None:
    encoder = nnr.UpdateEncoder()
    first, second, third = rounds(3)
    encoder.encode(first)
    encoder.reset()
    alone = encoder.encode(second)
    assert headers(alone)["w"].parent_node_id_type == ICNN_NDU_EXT
    assert headers(alone)["w"].put_node_depth == 2
    assert parameters(alone).base_model_id == "#0.2."
    fresh = nnr.UpdateDecoder()
    assert np.array_equal(fresh.decode(alone)["w"], encoder.decoded["w"])
    assert np.array_equal(fresh.decode(encoder.encode(third))["w"], encoder.decoded["w"])


def test_a_tensor_that_reset_left_out_refers_to_nothing_either() -> None:
    encoder = nnr.UpdateEncoder()
    first, second, third = rounds(3)
    encoder.encode(first)
    encoder.reset()
    alone = encoder.encode({**second, "w": np.zeros_like(second["w"])})
    fresh = nnr.UpdateDecoder()
    fresh.decode(alone)
    assert np.array_equal(fresh.decode(encoder.encode(third))["w"], encoder.decoded["w"])


# ------------------------------------------------------------------------------------------ tools
def test_contexts_of_earlier_updates_save_bits() -> None:
    off = {"temporal_context_modeling": False, "hist_dep_sig_prob": False, "nnr_pre": False}
    without = sizes(**off)
    temporal = sizes(**{**off, "temporal_context_modeling": True})
    history = sizes(**{**off, "hist_dep_sig_prob": True})
    chosen = sizes(nnr_pre=False)
    assert without[0] == temporal[0] == history[0] == chosen[0]  # there is nothing yet
    for plain, one, other, both in zip(without[1:], temporal[1:], history[1:], chosen[1:], strict=True):
        assert one < 0.8 * plain
        assert other < 0.8 * plain
        assert both <= 1.01 * min(one, other)


def test_contexts_are_not_used_where_they_cost() -> None:
    rng = np.random.default_rng(3)
    encoder = nnr.UpdateEncoder(nnr_pre=False)
    for _ in range(2):
        data = encoder.encode({"w": rng.standard_normal((60, 80)).astype(np.float32)})
    assert headers(data)["w"].temporal_context_modeling_flag == 0


def test_9_2_4_residuals_are_coded_where_that_is_smaller() -> None:
    like, unlike = nnr.UpdateEncoder(), nnr.UpdateEncoder()
    flags = [
        [parameters(encoder.encode(update)).nnr_pre_flag for update in rounds(3, keep=keep, part=0.5)]
        for encoder, keep in ((like, 0.95), (unlike, 0.0))
    ]
    assert flags == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("option", ["sensitivity", "hessians"])
def test_data_about_unchanged_tensors(option: str) -> None:
    """Data about unchanged tensors is permitted; data about unknown tensors is an error."""
    known = {name: np.eye(columns) if option == "hessians" else 2.0 for name, columns in {"w": 80, "v": 3}.items()}
    (update,) = rounds(1)
    encoder = nnr.UpdateEncoder(**{option: known})
    data = encoder.encode({**update, "v": np.zeros((4, 3), "f4")})
    assert data == nnr.UpdateEncoder(**{option: {"w": known["w"]}}).encode(update)
    assert encoder.encode({**update, "v": np.ones((4, 3), "f4")})
    with pytest.raises(nnr.EncodeError, match="'v' is not a tensor of the model"):
        nnr.UpdateEncoder(**{option: known}).encode(update)
    base = {"w": update["w"], "v": np.ones((4, 3), "f4")}
    new = {**base, "w": 2 * base["w"]}
    assert nnr.encode_update(base, new, **{option: known}) == nnr.encode_update(
        base, new, **{option: {"w": known["w"]}}
    )
    with pytest.raises(nnr.EncodeError, match="'u' is not a tensor of the model"):
        nnr.encode_update(base, new, **{option: {"u": known["v"]}})


def test_6_4_4_3_no_residuals_where_a_tensor_has_no_update_before() -> None:
    """nnr_pre_flag applies to all tensors: a tensor that was whole, omitted or absent before has nothing to add to."""
    zeros, vector = {"c": np.zeros(9, "f4")}, {"c": np.full(9, 2.0**-10, "f4")}
    for more, whole in (({}, zeros), (zeros, {}), ({}, {})):
        encoder, bitstreams, flags = nnr.UpdateEncoder(nnr_pre=True), [], []
        for k, update in enumerate(rounds(3, keep=0.95, part=0.5)):
            bitstreams.append(encoder.encode(update | vector) if k else encoder.encode(update | more, whole=whole))
            flags.append(parameters(bitstreams[-1]).nnr_pre_flag)
            assert not nnr.verify(bitstreams[-1], inputs=bitstreams[:-1]).violations
        assert flags == [0, 0, 1]


def test_9_2_4_residuals_are_quantized_uniformly_and_add_up() -> None:
    encoder, decoder = nnr.UpdateEncoder(nnr_pre=True), nnr.UpdateDecoder()
    for number, update in enumerate(rounds(4, keep=0.9)):
        data = encoder.encode(update)
        assert parameters(data).nnr_pre_flag == int(number > 0)
        if number:
            assert all(header.dq_flag == 0 for header in headers(data).values())
        decoded = decoder.decode(data)
        assert np.array_equal(decoded["w"], encoder.decoded["w"])
        error = np.square(decoded["w"] - update["w"]).sum() / np.square(update["w"]).sum()
        assert error < 10**-2.0


def test_9_2_4_an_update_like_the_one_before_is_coded_as_zeros() -> None:
    encoder, decoder = nnr.UpdateEncoder(nnr_pre=True), nnr.UpdateDecoder()
    (update,) = rounds(1)
    decoder.decode(encoder.encode(update))
    same = dict(encoder.decoded)
    data = encoder.encode(same)
    assert len(data) < 200
    assert all(np.array_equal(value, same[name]) for name, value in decoder.decode(data).items())


def test_7_3_2_counters_stay_integers() -> None:
    encoder, decoder = nnr.UpdateEncoder(nnr_pre=True), nnr.UpdateDecoder()
    for steps in (32, 30, 0, 31):
        decoded = decoder.decode(encoder.encode({"steps": np.array(steps, np.int64)}))
        assert decoded["steps"].dtype.kind == "i"
        assert decoded["steps"] == steps


def test_rows_of_zeros_are_skipped() -> None:
    update = np.zeros((400, 100), np.float32)
    update[::40] = np.random.default_rng(1).standard_normal((10, 100))
    assert len(nnr.UpdateEncoder().encode({"w": update})) < len(
        nnr.UpdateEncoder(row_skipping=False).encode({"w": update})
    )


def test_tensors_of_zeros_are_left_out_and_come_back() -> None:
    encoder, decoder = nnr.UpdateEncoder(), nnr.UpdateDecoder()
    (update,) = rounds(1)
    decoder.decode(encoder.encode(update))
    data = encoder.encode({**update, "w": np.zeros_like(update["w"])})
    assert list(headers(data)) == ["b"]
    decoded = decoder.decode(data)
    assert decoded["w"].shape == (60, 80)
    assert not decoded["w"].any()
    nothing = encoder.encode({name: np.zeros_like(array) for name, array in update.items()})
    assert len(nothing) < 60
    assert not any(array.any() for array in decoder.decode(nothing).values())


def test_independent_updates_leave_out_tensors_whose_levels_are_zeros() -> None:
    (update,) = rounds(1)
    options: dict[str, Any] = {"qp": -40, "fine_vectors": False}  # step sizes above all values of b
    encoder, decoder = nnr.UpdateEncoder(parent="external", **options), nnr.UpdateDecoder(like=update)
    data = encoder.encode(update)
    assert list(headers(data)) == list(encoder.decoded) == ["w"]
    decoded = decoder.decode(data)
    assert decoded["w"].any() and decoded["b"].shape == (60,) and not decoded["b"].any()
    assert list(headers(nnr.UpdateEncoder(**options).encode(update))) == ["w", "b"]  # later updates refer to both


def test_error_feedback_returns_tensors_that_were_left_out() -> None:
    (update,) = rounds(1)
    encoder = nnr.UpdateEncoder(parent="external", error_feedback=True, qp=-40, fine_vectors=False)
    total = sum(encoder.encode(update) and encoder.decoded.get("b", 0 * update["b"]) for _ in range(40))
    assert encoder.feedback and np.abs(total).max() > 0
    assert np.allclose(total + encoder.feedback.residual["b"], 40 * update["b"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [120, 400, 1500])
def test_a_target_size_is_met_by_leaving_out_tensors(size: int) -> None:
    rng = np.random.default_rng(3)
    update = {f"layer{k}": rng.standard_normal((16, 16)).astype(np.float32) for k in range(20)}
    assert size / 2 < len(nnr.UpdateEncoder(parent="external", target_size=size).encode(update)) <= size


def test_error_feedback_needs_no_warning_about_losses() -> None:
    (update,) = rounds(1)
    options: dict[str, Any] = {"parent": "external", "target_size": 300}
    with pytest.warns(nnr.LossWarning):
        nnr.UpdateEncoder(**options).encode(update)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nnr.UpdateEncoder(error_feedback=True, **options).encode(update)


def test_whole_tensors_take_the_place_of_the_base_and_start_anew() -> None:
    encoder, decoder = nnr.UpdateEncoder(), nnr.UpdateDecoder()
    first, second = rounds(2)
    decoder.decode(encoder.encode(first))
    data = encoder.encode({"b": second["b"]}, whole={"w": np.full((3, 4), np.nan, np.float32)})
    decoded = decoder.decode(data)
    assert decoded.whole == {"w"}
    assert np.isnan(decoded["w"]).all()
    assert decoded["w"].shape == (3, 4)
    after = encoder.encode({"w": np.ones((3, 4), np.float32), "b": second["b"]})
    assert headers(after)["w"].put_node_depth == 1
    assert decoder.decode(after)["w"] == pytest.approx(np.ones((3, 4)), abs=0.2)


def test_whole_tensors_are_as_fine_as_in_models() -> None:
    whole = np.random.default_rng(2).standard_normal((50, 60)).astype(np.float32)
    encoder = nnr.UpdateEncoder(quality=5.0)
    encoder.encode({}, whole={"w": whole})
    assert np.array_equal(encoder.decoded["w"], nnr.decode(nnr.encode({"w": whole}))["w"])


def test_the_performance_of_the_model_is_sent() -> None:
    performance = nnr.Performance(performance_metric_type="accuracy", validation_set_performance=0.5)
    data = nnr.UpdateEncoder(base_model_id="x").encode(next(rounds(1)), performance=performance)
    assert nnr.open(data).performance.validation_set_performance == 0.5
    assert nnr.open(data).performance.base_model_id == "x#0.1."
    with pytest.raises(nnr.EncodeError, match="performance has a base_model_id"):
        nnr.UpdateEncoder().encode(next(rounds(1)), performance=nnr.Performance("another"))


def test_quality_is_about_each_tensor_by_itself() -> None:
    rng = np.random.default_rng(5)
    update = {"large": rng.standard_normal((50, 60)), "small": 1e-4 * rng.standard_normal((50, 60))}
    encoder = nnr.UpdateEncoder()
    encoder.encode(update)
    for name, array in update.items():
        noise = np.square(encoder.decoded[name] - array).sum()
        assert 15 < 10 * np.log10(np.square(array).sum() / noise) < 30


@pytest.mark.parametrize("preset", ["update", "fl", "3gpp-incremental"])
def test_presets(preset: str) -> None:
    encoder, decoder = nnr.UpdateEncoder(nnr.EncoderConfig.preset(preset)), nnr.UpdateDecoder()
    for update in rounds(3, keep=0.9):
        decoded = decoder.decode(encoder.encode(update))
        assert np.array_equal(decoded["w"], encoder.decoded["w"])
        assert np.corrcoef(decoded["w"].ravel(), update["w"].ravel())[0, 1] > 0.9


def test_3gpp_incremental_uses_the_tools_that_it_names() -> None:
    encoder = nnr.UpdateEncoder(nnr.EncoderConfig.preset("3gpp-incremental"))
    for update in rounds(3, keep=0.95):
        data = encoder.encode(update)
    header = headers(data)["w"]
    assert header.scan_order > 0
    assert header.parent_node_id_present_flag == 1


# ------------------------------------------------------------------------------------------ state
@pytest.mark.parametrize(
    "options", [{}, {"nnr_pre": True, "dependent_quantization": False}, {"parent": "sha256"}], ids=str
)
def test_a_tensor_of_another_shape_or_type_starts_anew(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    floats, integers = rng.normal(0, 0.1, (20, 30)).astype(np.float32), rng.integers(-5, 5, (20, 30), np.int32)
    encoder, decoder = nnr.UpdateEncoder(**options), nnr.UpdateDecoder()
    steady = {"b": rng.normal(0, 0.1, 600).astype(np.float32)}
    for depth, array in enumerate((floats, floats, floats.T, floats[:10], integers, integers, floats), 1):
        data = encoder.encode({"w": array, **steady})
        found = headers(data)
        assert found["w"].put_node_depth == depth
        if depth > 1:  # before it, no payload exists that a hash could name
            assert (found["w"].parent_node_id_type == ICNN_NDU_EXT) == (depth in (3, 4, 5, 7))
            assert found["b"].parent_node_id_type != ICNN_NDU_EXT
        decoded = decoder.decode(data)
        assert all(np.array_equal(decoded[name], encoder.decoded[name]) for name in ("w", "b"))
        assert decoded["w"].shape == array.shape
    assert content(decoder.state) == content(encoder.state)


def test_another_encoder_goes_on_from_a_state() -> None:
    """The names in the state determine the parameter_id of tensors, whatever their order."""
    one, decoder = nnr.UpdateEncoder(device_id=3), nnr.UpdateDecoder()
    first, second, third = rounds(3)
    for update in (first, second):
        decoder.decode(one.encode(update))
    other = nnr.UpdateEncoder(device_id=3, state=decoder.state)
    found = headers(data := other.encode({name: third[name] for name in sorted(third)} | {"new": np.ones(3)}))
    assert {name: header.parameter_id for name, header in found.items()} == {"w": 0, "b": 1, "new": 2}
    assert [found[name].put_node_depth for name in ("w", "b", "new")] == [3, 3, 1]
    assert np.array_equal(decoder.decode(data)["w"], other.decoded["w"])


def test_a_state_that_was_asked_for_stays_when_the_encoder_is_reset() -> None:
    encoder = nnr.UpdateEncoder()
    encoder.encode(next(rounds(1)))
    before, known = encoder.state, content(encoder.state)
    encoder.reset()
    assert content(before) == known != content(encoder.state)


def test_a_pickled_encoder_continues() -> None:
    encoder = nnr.UpdateEncoder(device_id=2, error_feedback=True, sparsity=0.5)
    first, second, third = rounds(3)
    encoder.encode(first)
    other = pickle.loads(pickle.dumps(encoder))
    for update in (second, third):
        assert encoder.encode(update) == other.encode(update)


def test_a_refused_update_leaves_the_encoder_as_it_was() -> None:
    encoder, same = nnr.UpdateEncoder(error_feedback=True), nnr.UpdateEncoder(error_feedback=True)
    first, second = rounds(2)
    assert encoder.encode(first) == same.encode(first)
    with pytest.raises(EncodeError, match="'w'"):
        encoder.encode({**second, "w": np.full((60, 80), np.inf, np.float32)})
    assert encoder.encode(second) == same.encode(second)


def test_error_feedback_sends_lost_changes_later() -> None:
    encoder, decoder = nnr.UpdateEncoder(quality=3.0, error_feedback=True, sparsity=0.9), nnr.UpdateDecoder()
    update = {"w": np.random.default_rng(4).standard_normal((60, 80)).astype(np.float32)}
    got = np.zeros((60, 80))
    for _ in range(12):
        got += decoder.decode(encoder.encode(update))["w"]
    assert encoder.feedback is not None
    assert 12 * update["w"] == pytest.approx(got + encoder.feedback.residual["w"], abs=1e-3)


@pytest.mark.parametrize("options", [{"sparsity": 0.9}, {"structured_sparsity": 0.7}])
def test_sparsity_is_met(options: Mapping[str, float]) -> None:
    encoder = nnr.UpdateEncoder(**options)
    encoder.encode({"w": np.random.default_rng(4).standard_normal((100, 80)).astype(np.float32)})
    assert np.count_nonzero(encoder.decoded["w"] == 0) >= 8000 * next(iter(options.values()))


# ------------------------------------------------------------------------------------------ errors
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parent": "father"}, "father"),
        ({"device_id": -1}, "device_id"),
        ({"device_id": 1 << 32}, "4294967295"),
        ({"device_id": "1"}, "device_id"),
        ({"parent": "sha512", "state": nnr.UpdateState()}, "requires digests"),
        ({"sparsity": 1.5}, "sparsity"),
        ({"sparsity": float("nan")}, "sparsity"),
        ({"structured_sparsity": -0.1}, "structured_sparsity"),
        ({"profile": 0}, "profile 0"),
        ({"block": True}, "block applies to whole models"),
        ({"local_scaling": True}, "local_scaling applies to whole models"),
        ({"fold_batchnorm": True}, "fold"),
        ({"nnr_pre": True, "dependent_quantization": True}, "uniform"),
        ({"nnr_pre": 1}, "nnr_pre"),
        ({"temporal_context_modeling": "yes"}, "temporal_context_modeling"),
    ],
)
def test_options_that_updates_cannot_have(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        nnr.UpdateEncoder(**options)


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"x": np.array([np.nan], np.float32)}, "NaN or infinity"),
        ({"x": np.array([True])}, "not support differences"),
        ({"x": np.array([1 << 40])}, "32 bits"),
        ({"x": np.array(["a"])}, "not support differences"),
        ({"w": np.ones(3, np.float32)}, "and whole"),
    ],
)
def test_differences_that_there_are_not(update: Update, message: str) -> None:
    with pytest.raises(EncodeError, match=message):
        nnr.UpdateEncoder().encode(update, whole={"w": np.ones(3, np.float32)})


def test_exact_is_exact_or_refused() -> None:
    """RAW_FLOAT is float32 (7.3.4)."""
    encoder = nnr.UpdateEncoder(exact=True)
    halves = np.arange(-9, 9) / 2
    encoder.encode({"x": halves})
    assert np.array_equal(encoder.decoded["x"], halves)
    with pytest.raises(EncodeError, match=r"'x' exceeds float32 .*; pass it in the argument 'whole'"):
        encoder.encode({"x": halves / 3})


@pytest.mark.parametrize("options", [{}, {"lossless": True}], ids=str)
def test_tied_tensors_are_coded_once(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    one, other = (rng.standard_normal((40, 50)).astype(np.float32) for _ in range(2))
    new = other if options else (one + other / 100).astype(np.float32)
    models = [nnr.Model({"a": w, "b": w.copy(), "c": np.ones(3)}, aliases={"b": "a"}) for w in (one, new)]
    data = nnr.encode_update(*models, **options)
    assert len(data) < len(nnr.encode_update({"a": one}, {"a": new}, **options)) + 100
    got = nnr.apply_update(models[0], data)
    assert got.aliases == {"b": "a"}
    assert np.array_equal(got.tensors["a"], got.tensors["b"])
    assert not options or np.array_equal(got.tensors["b"], new)
    apart = nnr.encode_update(models[0], nnr.Model({**models[1].tensors, "b": one * 2}), **options)
    assert np.abs(nnr.apply_update(models[0], apart).tensors["b"] - one * 2).max() < 0.5


def test_no_sum_leaves_the_type_of_the_base() -> None:
    """The quantization error of a difference may exceed the range of float16."""
    new = np.random.default_rng(1).uniform(0, 60000, (40, 40)).astype(np.float16)
    new[0], base = 65504, {"x": (new / 2).astype(np.float16)}
    data = nnr.encode_update(base, {"x": new}, quality=5.0)
    assert np.isfinite(nnr.apply_update(base, data)["x"]).all()


def test_lossless_leaves_nothing_to_choose() -> None:
    with pytest.raises(EncodeError, match="quality"):
        nnr.encode_update({"a": np.ones(3)}, {"a": np.zeros(3)}, lossless=True, quality=30)


def test_an_update_takes_no_tensor_away() -> None:
    with pytest.raises(EncodeError, match="'b'"):
        nnr.encode_update({"a": np.ones(3), "b": np.ones(3)}, {"a": np.ones(3)})


def test_attachments_that_differ_are_left_out_with_a_warning() -> None:
    base, new = (
        nnr.Model({"w": np.full((4, 5), step, np.float32)}, attachments={"a.json": b"{}", "b.json": b"%d" % step})
        for step in (0, 1)
    )
    with pytest.warns(nnr.EncodeWarning, match=r"these differ from the base: 'b\.json'$"):
        nnr.encode_update(base, new)
