"""Decoding in lanes gives the same tensors and errors as decoding without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.cabac_ext.kernel import LaneJob, lane_engines
from nnr_codec.constants import NNR_NDU
from nnr_codec.decoder import lanes
from nnr_codec.limits import Limits

from ..lanes import all_in_lanes, no_lanes
from ..shared import examples, mostly_slow
from ..vectors.few import some

pytestmark = pytest.mark.skipif(not lane_engines(), reason="the processor has no AVX2")

RNG = np.random.default_rng(11)


def outcome(data: bytes, **options: Any) -> Any:
    """Return the decoded tensors, or the error."""
    try:
        return [(name, a.dtype, a.shape, a.tobytes()) for name, a in nnr.decode(data, **options).tensors.items()]
    except nnr.NnrError as error:
        return type(error), str(error), getattr(error, "bit", None)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[LaneJob]:
    """Record the jobs for lanes."""
    found: list[LaneJob] = []
    init = lanes.BatchDecoder.jobs

    def noting(self: lanes.BatchDecoder) -> list[LaneJob]:
        jobs = init(self)
        found.extend(jobs)
        return jobs

    monkeypatch.setattr(lanes.BatchDecoder, "jobs", noting)
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("threads", [1, 2])
def test_vectors(threads: int, jobs: list[LaneJob]) -> None:
    for name, case in some("valid", "acceptable", "invalid").items():
        data = case.streams[-1].path.read_bytes()
        options: dict[str, Any] = {"limits": Limits.strict(), "jobs": threads}
        with no_lanes():
            expected = outcome(data, **options)
        with all_in_lanes():
            assert outcome(data, **options) == expected, name
    assert len(jobs) > examples(200)


def model() -> dict[str, np.ndarray[Any, Any]]:
    shapes = [(300, 200), (40, 3, 3, 3), (64,), (1000, 90), (130, 7), (1, 5000), (64, 512), (4000,)] * 3
    return {f"w{k}": RNG.laplace(0, 0.05, shape).astype("f4") for k, shape in enumerate(shapes)}


@pytest.mark.parametrize(
    "options", mostly_slow(2, [{}, {"exact": True}, {"scan_order": 1}, {"dependent_quantization": False}]), ids=str
)
def test_models(options: dict[str, Any], jobs: list[LaneJob]) -> None:
    data = nnr.encode(model(), **options)
    for more in ({}, {"jobs": 3}, {"dtype": "float16"}):
        with no_lanes():
            expected = outcome(data, **more)
        assert outcome(data, **more) == expected
        with all_in_lanes():
            assert outcome(data, **more) == expected
    assert jobs
    assert all(job.done for job in jobs)


def test_the_first_error_in_the_bitstream_is_raised(jobs: list[LaneJob]) -> None:
    """Two tensors are malformed, and lanes begin with the larger one."""
    tensors = {f"w{k}": RNG.laplace(0, 0.05, (100, 100 + 9 * k)).astype("f4") for k in range(20)}
    data = bytearray(nnr.encode(tensors))
    coded = [unit for unit in nnr.units(bytes(data)) if unit.header.nnr_unit_type == NNR_NDU]
    for unit in (coded[7], coded[19]):
        start, stop = unit.offset + unit.payload_offset, unit.offset + unit.size.nnr_unit_size
        middle = (start + stop) // 2
        data[middle:stop] = b"\xff" * (stop - middle)
    with no_lanes():
        expected = outcome(bytes(data))
    assert "'w7'" in expected[1]
    with all_in_lanes():
        assert outcome(bytes(data)) == expected
    assert len(jobs) == 20


def test_one_large_tensor_among_small_ones_is_left_to_scalar_code(jobs: list[LaneJob]) -> None:
    """It would occupy one lane while the others are idle."""
    tensors = {f"w{k}": RNG.laplace(0, 0.05, (80, 80)).astype("f4") for k in range(20)}
    data = nnr.encode({"large": RNG.laplace(0, 0.05, (400, 400)).astype("f4"), **tensors})
    decoded = nnr.decode(data).tensors
    assert sorted(job.size for job in jobs) == [6400] * 20
    with no_lanes():
        assert (nnr.decode(data).tensors["large"] == decoded["large"]).all()


def test_tensors_of_8_bits_are_cast_from_levels_of_lanes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="the package ml_dtypes (extra 'types') is not installed")
    rng = np.random.default_rng(0)
    tensors = {f"w{k}": rng.normal(size=(256, 200)).astype(ml_dtypes.float8_e4m3fn) for k in range(12)}
    data = nnr.encode(tensors, nnr.EncoderConfig(qp=-20))
    decoded, file = nnr.decode(data), nnr.open(data)
    for name, tensor in decoded.tensors.items():
        assert tensor.dtype == ml_dtypes.float8_e4m3fn
        assert tensor.tobytes() == file[name].tobytes()
