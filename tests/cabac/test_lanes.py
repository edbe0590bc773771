"""Lanes against the code for all processors: levels, values, positions and errors are equal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from nnr_codec.cabac_ext.kernel import (
    LaneJob,
    LevelReader,
    PayloadDecoder,
    PayloadEncoder,
    TensorSide,
    TensorSyntax,
    decode_lanes,
    fits_lanes,
    lane_engines,
    scale,
)
from nnr_codec.errors import BitstreamError

pytestmark = pytest.mark.skipif(not lane_engines(), reason="the processor has no AVX2")

Levels = npt.NDArray[np.int32]


class Coded(NamedTuple):
    """Tensor with its payload."""

    options: dict[str, Any]
    levels: Levels
    payload: bytes
    entry_points: list[tuple[int, int, int]]

    def reader(self, **more: Any) -> LevelReader:
        """Return the reader of the levels."""
        return PayloadDecoder(self.payload).head(TensorSyntax(self.levels.shape, **self.options, **more))


def coded(levels: npt.ArrayLike, side: TensorSide | None = None, **options: Any) -> Coded:
    levels, encoder = np.asarray(levels, np.int32), PayloadEncoder()
    encoder.quant_tensor(TensorSyntax(levels.shape, **options), levels, side)
    encoder.terminate()
    return Coded(options, levels, encoder.getvalue(), encoder.entry_points())


def many(seed: int, count: int = 40) -> list[Coded]:
    """Return tensors of many sizes and distributions, with all tools that lanes support."""
    random, rng, found = Random(seed), np.random.default_rng(seed), []
    for _ in range(count):
        shape = random.choice(
            [(random.randint(1, 4000),), (random.randint(2, 90), random.randint(2, 90)), (2, 512), (1, 1023), (1, 1025)]
        )
        x = random.choice([rng.normal, rng.laplace])(0, random.choice([0.2, 1, 8, 300]), shape)
        x *= rng.random(shape) < random.choice([0.02, 0.3, 1])
        for _ in range(random.choice([0, 0, 1, 5])):  # long escapes, at the last level as well
            x.flat[random.choice([x.size - 1, random.randrange(x.size)])] = random.choice(
                [-1, 1]
            ) * 2.0 ** random.randint(12, 29)
        options = {
            "dq_flag": random.getrandbits(1),
            "scan_order": random.choice([0, 0, 1, 2, 4]),
            "cabac_unary_length_minus1": random.choice([0, 1, 9, 9, 31]),
        }
        ids = np.array(random.choices(range(9), k=87 + 4 * (options["cabac_unary_length_minus1"] + 1)), np.uint8)
        side = TensorSide(shift_parameter_ids=ids) if random.getrandbits(1) else None
        if len(shape) == 2 and min(shape) > 1 and random.getrandbits(1):
            x[rng.random(shape[0]) < 0.5] = 0
            side = TensorSide(row_skip_enabled_flag=1, shift_parameter_ids=ids)
        found.append(coded(np.rint(x).astype(np.int32), side, **options))
    return found


def read(reader: LevelReader, size: int) -> Levels:
    levels = np.empty(size, np.int32)
    reader.read(levels)
    return levels


@pytest.fixture(params=lane_engines(), autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `decode_lanes` use each engine of this processor."""
    monkeypatch.setattr(f"{__name__}.decode_lanes", partial(decode_lanes, engine=request.param))


def in_lanes(readers: Sequence[LevelReader], sizes: Sequence[int], few: int = 0) -> list[tuple[LaneJob, Levels]]:
    outs = [np.full(size, 77, np.int32) for size in sizes]
    jobs = [LaneJob(reader, out) for reader, out in zip(readers, outs, strict=True)]
    decode_lanes(jobs, few=few)
    return list(zip(jobs, outs, strict=True))


@pytest.mark.parametrize("few", [0, 2, 16, 17])
@pytest.mark.parametrize("seed", range(6))
def test_levels_and_positions_equal_scalar_code(seed: int, few: int) -> None:
    tensors = many(seed)
    assert all(fits_lanes(tensor.reader()) for tensor in tensors)
    found = in_lanes([tensor.reader() for tensor in tensors], [tensor.levels.size for tensor in tensors], few)
    for tensor, (job, levels) in zip(tensors, found, strict=True):
        reader = tensor.reader()
        assert job.done
        assert levels.tolist() == read(reader, tensor.levels.size).tolist()
        assert job.reader.decoder.bit == reader.decoder.bit
        job.reader.decoder.terminate()


@pytest.mark.parametrize("seed", range(8))
def test_a_malformed_payload_changes_nothing_in_other_lanes(seed: int) -> None:
    """A job succeeds exactly if scalar code decodes its levels."""
    random, tensors = Random(seed), []
    for tensor in many(100 + seed, 60):
        data = bytearray(tensor.payload)
        for _ in range(random.choice([0, 0, 1, 3])):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        cut = random.choice([0, 0, 1, 2, 5, len(data) // 2, len(data) - 1])
        tensors.append(tensor._replace(payload=bytes(data[: len(data) - cut])))
    pairs, sizes = [], []
    for tensor in tensors:
        try:
            pair = tensor.reader(), tensor.reader()
        except BitstreamError:
            continue
        if fits_lanes(pair[0]):
            pairs.append(pair)
            sizes.append(tensor.levels.size)
    results = in_lanes([one for one, _ in pairs], sizes)
    valid = 0
    for (_, reader), size, (job, levels) in zip(pairs, sizes, results, strict=True):
        try:
            expected = read(reader, size)
        except BitstreamError:
            assert not job.done
            continue
        assert job.done
        assert levels.tolist() == expected.tolist()
        assert job.reader.decoder.bit == reader.decoder.bit
        valid += 1
    assert 5 < valid < len(pairs) - 5


@pytest.mark.parametrize("few", [0, 4])
def test_segments_between_entry_points_are_parts_of_the_tensor(few: int) -> None:
    rng = np.random.default_rng(1)
    tensor = coded(np.rint(rng.laplace(0, 3, (200, 150))), dq_flag=1, scan_order=1)
    reader = tensor.reader(entry_point_list=np.array(tensor.entry_points))
    out = np.zeros(tensor.levels.shape, np.int32)
    rows = range(0, 200, 16)
    jobs = [LaneJob(reader.fork(row) if row else reader, out[row : row + 16]) for row in rows]
    decode_lanes(jobs, few=few)
    assert all(job.done for job in jobs)
    assert out.tolist() == read(tensor.reader(), out.size).reshape(out.shape).tolist()
    jobs[-1].reader.decoder.terminate()


@pytest.mark.parametrize("column", range(3))
def test_an_entry_point_that_the_header_describes_wrongly_is_not_done(column: int) -> None:
    rng = np.random.default_rng(2)
    tensor = coded(np.rint(rng.laplace(0, 3, (40, 30))), dq_flag=1, scan_order=1)
    points = np.array(tensor.entry_points)
    points[2, column] ^= 1
    reader = tensor.reader(entry_point_list=points)
    [(job, _)] = in_lanes([reader], [1200])
    assert not job.done


def test_values_are_levels_times_the_step() -> None:
    tensors, step = many(7), 0.0123
    outs = [np.empty(tensor.levels.shape, np.float32) for tensor in tensors]
    decode_lanes([LaneJob(tensor.reader(), out, step) for tensor, out in zip(tensors, outs, strict=True)])
    for tensor, out in zip(tensors, outs, strict=True):
        expected = np.empty(out.size, np.float32)
        scale(read(tensor.reader(), out.size), step, expected)
        assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["f2", ml_dtypes.bfloat16])
def test_values_are_rounded_to_the_type_of_the_output(dtype: Any) -> None:
    """Values range from half the smallest subnormal number to overflow, including ties."""
    rng = np.random.default_rng(4)
    tensor = coded(rng.integers(-(1 << 20), 1 << 20, 4000) >> rng.integers(0, 20, 4000))
    for step in (2.0**-4, 0.7 * 2.0**-24, 2.0**-25, 2.0**-40, 2.0**107, 2.0**108):
        out = np.empty(4000, dtype)
        decode_lanes([LaneJob(tensor.reader(), out, step)], few=0)
        with np.errstate(over="ignore"):
            expected = (tensor.levels.astype("f4") * np.float32(step)).astype(dtype)
        assert out.tobytes() == expected.tobytes()


def test_lanes_are_refilled_from_the_queue() -> None:
    """Of 100 equal tensors, lanes are idle only when fewer than 16 are left."""
    tensor = coded(np.rint(np.random.default_rng(3).normal(0, 3, 5000)))
    outs = [np.empty(5000, np.int32) for _ in range(112)]
    busy, steps = decode_lanes([LaneJob(tensor.reader(), out) for out in outs], few=0)
    assert busy > 0.95 * steps
    assert decode_lanes([LaneJob(tensor.reader(), outs[0])], few=0) == pytest.approx((steps / 112, steps / 7), rel=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"codebook": (5, 2)},
        {"cabac_unary_length_minus1": 32},
        {"parent_node_id_present_flag": 1, "temporal_context_modeling_flag": 1, "co_loc": np.ones((3, 4), np.int32)},
    ],
)
def test_tensors_for_scalar_code_are_separated(options: dict[str, Any]) -> None:
    assert not fits_lanes(coded(np.ones((3, 4)), **options).reader())


def test_places_of_another_size_or_type_are_refused() -> None:
    tensor = coded(np.ones((40, 30)), scan_order=1)
    places: tuple[Any, ...] = (np.empty(0, "i4"), np.empty(1201, "i4"), np.empty(100, "i4"), np.empty((2, 600), "i8"))
    for out in places:
        with pytest.raises(ValueError, match=r"cannot be read|row of blocks"):
            LaneJob(tensor.reader(), out)


def test_an_unknown_engine_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"'mmx' cannot run on this processor; its engines are \['av"):
        decode_lanes([], engine="mmx")
