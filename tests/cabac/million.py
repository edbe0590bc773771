"""Comparison of the kernel with the plain implementation of clause 10 on many small random tensors.

``python -m tests.cabac.million [--count N] [--seed S] [--first K] [--jobs J]``

Both encode and decode payloads of one to four tensors with any combination of the tools: the bytes, parameters, flags,
ids, entry points and positions are equal; in one payload of 16 also the state after every bin. The first tensors of
payloads are also decoded in lanes, by each engine of the processor. A payload depends only on the seed and its number:
``--first NUMBER --count 1`` repeats a failure.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from math import prod
from random import Random

import numpy as np

from nnr_codec.cabac_ext.kernel import (
    LaneJob,
    LevelReader,
    PayloadDecoder,
    PayloadEncoder,
    decode_lanes,
    fits_lanes,
    lane_engines,
)
from nnr_codec.syntax.deepcabac import QuantTensor, QuantTensorSyntax

from .pairs import (
    Pair,
    assert_same,
    clear_rows,
    feed,
    kernel_decode,
    kernel_encode,
    kernel_syntax,
    kernel_trace,
    level_range,
    oracle_decode,
    oracle_encode,
    random_ids,
    random_levels,
)

#: Tensors of the payloads whose numbers have this remainder; ten in eight payloads.
SIZES = (1, 1, 1, 1, 1, 1, 2, 2)
#: Payloads in one batch of a process.
BATCH = 400
#: One of this number of payloads is compared bin by bin.
TRACED = 16
UNARY = (1, 1, 1, 1, 2, 2, 2, 3, 5, 5, 10, 10, 11, 40)
WIDTHS = (0, 1, 1, 1, 2, 2, 5, 12, 40, 1000, 2**20, 2**31)


def random_dims(random: Random) -> tuple[int, ...]:
    """Return few elements; some tensors have two or three rows of blocks of a scan order."""
    kind = random.random()
    if kind < 0.02:
        return random.choice((17, 33, 65)), random.choice((2, 3))
    if kind < 0.1:
        return random.randint(7, 18), random.choice((2, 2, 3))
    if kind < 0.2:
        return (1, random.randint(1, 12)) if random.random() < 0.5 else (random.randint(1, 12), 1)
    if kind < 0.3:
        return (random.randint(1, 14),)
    dims = [random.randint(1, 5), random.randint(1, 4)]
    return tuple(dims if kind < 0.8 else [*dims, random.choice((1, 2, 2, 3))])


def random_codebook(random: Random) -> tuple[int, int]:
    """Return CbSize and CbZeroOffset; one-sided codebooks are frequent."""
    size = random.choice((1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 33, 300, 2**31 + 5))
    return size, random.choice((0, size - 1, size // 2, random.randrange(size)))


def random_pair(random: Random) -> Pair:
    """Return a tensor of clause 10 with all parameters of its coding."""
    dims = random_dims(random)
    size, bit = prod(dims), random.getrandbits
    profile = int(random.random() < 0.75)
    parent = int(random.random() < 0.4)
    temporal = parent and bit(1)
    co_loc = any_sig = None
    if temporal and random.random() < 0.8:
        co_loc = random_levels(random, size, (-(2**31), 2**31 - 1), random.choice((1, 2, 5, 12, 2**31 - 1)), 0.4)
    if parent and random.random() < 0.8:
        any_sig = [bit(1) for _ in range(size)]
    s = QuantTensorSyntax(
        dims,
        dq_flag=bit(1),
        general_profile_idc=profile,
        cabac_unary_length_minus1=(256 if random.random() < 0.002 else random.choice(UNARY)) - 1,
        scan_order=random.choice((0, 0, 1, 1, 2, 3, 4)),
        codebook=random_codebook(random) if random.random() < 0.35 else None,
        parent_node_id_present_flag=parent,
        temporal_context_modeling_flag=temporal,
        co_loc=co_loc,
        any_sig_before=any_sig,
        qp_bits=random.choice((0, 6, 7, 8, 13)),
        first_edition=not profile and bool(bit(1)),
    )
    t = QuantTensor(random_levels(random, size, level_range(s), random.choice(WIDTHS), random.choice((0, 0.5, 0.9))))
    if s.qp_bits:
        t.qp_value = random.randrange(1 << s.qp_bits) - (1 << (s.qp_bits - 1))
    if s.row_flags_present:
        t.hist_dep_sig_prob_enabled_flag = parent and bit(1)
        t.row_skip_enabled_flag = bit(1)
        if t.row_skip_enabled_flag:
            clear_rows(s, t, [random.random() < 0.4 for _ in range(dims[0])])
    if random.random() < 0.4:
        t.shift_parameter_ids = random_ids(random, s)
    return s, t


def payload_of(seed: int, number: int) -> list[Pair]:
    """Return the tensors of a payload."""
    random = Random(seed << 40 | number)
    count = SIZES[number % len(SIZES)] + 2 * (number % 64 == 63)
    return [random_pair(random) for _ in range(count)]


def compare(tensors: list[Pair], traced: bool) -> Counter[str]:
    """Code tensors with both; return the compared items by tool. Raise AssertionError if they differ."""
    syntaxes = [s for s, _ in tensors]
    payload = oracle_encode(*tensors)
    encoder = PayloadEncoder()
    feed(encoder, *tensors)
    assert encoder.getvalue().hex() == payload.hex()
    expected = oracle_decode(payload, syntaxes, trace=traced)
    points = [point for points in expected.entry_points for point in points]
    assert encoder.entry_points() == points
    if traced:
        assert_same(kernel_trace(payload, syntaxes), expected)
    assert_same(kernel_decode(payload, syntaxes), expected)
    for (s, t), params in zip(tensors, expected.params, strict=True):
        assert s.dq_flag or params == t.levels
    seen = Counter({"payloads": 1, "payloads compared bin by bin": traced, "bytes": len(payload)})
    seen["payloads of several tensors"] = len(tensors) > 1
    seen["entry points"] = len(points)
    for s, t in tensors:
        seen.update(tools(s, t))
    return seen


def compare_lanes(payloads: list[list[Pair]], engine: str) -> int:
    """Decode the first tensors in lanes; return the number of suitable ones. Raise AssertionError on a difference."""
    jobs, found = [], []
    for tensors in payloads:
        payload, s = kernel_encode(*tensors), tensors[0][0]
        one, other = reader_of(payload, s), reader_of(payload, s)
        if fits_lanes(one):
            levels, expected = np.full((2, prod(s.dims)), -7, np.int32)
            jobs.append(LaneJob(one, levels))
            other.read(expected)
            found.append((levels, expected, other.decoder.bit))
    decode_lanes(jobs, len(jobs) % 7, engine)
    for job, (levels, expected, bit) in zip(jobs, found, strict=True):
        assert job.done
        assert levels.tolist() == expected.tolist()
        assert job.reader.decoder.bit == bit
    return len(jobs)


def reader_of(payload: bytes, s: QuantTensorSyntax) -> LevelReader:
    """Return the reader of the levels of a payload's first tensor."""
    decoder = PayloadDecoder(payload)
    if s.qp_bits:
        decoder.quant_param(s.qp_bits)
    return decoder.head(kernel_syntax(s))


def tools(s: QuantTensorSyntax, t: QuantTensor) -> Iterator[str]:
    """Return the properties of a tensor, by the names of the table."""
    yield "tensors"
    yield f"profile {s.general_profile_idc}"
    yield from ["first edition"] * s.first_edition
    yield from ["dependent quantization"] * s.dq_flag
    yield f"scan order {s.scan_order}"
    if s.codebook:
        yield "codebook"
        yield from ["codebook of one sign"] * (s.codebook[1] in (0, s.codebook[0] - 1))
    yield from ["temporal contexts"] * (s.co_loc is not None)
    yield from ["history contexts"] * (t.hist_dep_sig_prob_enabled_flag and s.any_sig_before is not None)
    yield from ["skipped rows"] * any(t.row_skip_list)
    yield from ["shift parameter ids"] * any(any(ids) for ids in t.shift_parameter_ids.values())
    yield from ["levels of more than 16 bits"] * (max(map(abs, t.levels)) >> 16 > 0)


def batch(seed: int, start: int, stop: int) -> Counter[str]:
    """Compare the payloads of these numbers."""
    seen: Counter[str] = Counter()
    for number in range(start, stop):
        try:
            seen.update(compare(payload_of(seed, number), number % TRACED == 0))
        except Exception as error:
            error.add_note(f"payload {number} of seed {seed}: --seed {seed} --first {number} --count 1")
            raise
    for engine in lane_engines():
        payloads = [payload_of(seed, number) for number in range(start, stop)]
        seen[f"tensors in lanes, {engine}"] = compare_lanes(payloads, engine)
    return seen


def batches(seed: int, first: int, jobs: int) -> Iterator[Counter[str]]:
    """Yield the results of batches without end."""
    starts = range(first, 1 << 40, BATCH)
    if jobs == 1:
        yield from (batch(seed, start, start + BATCH) for start in starts)
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(batch, seed, start, start + BATCH) for start in islice(starts, 2 * jobs)]
        for start in starts[2 * jobs :]:
            yield waiting.pop(0).result()
            waiting.append(pool.submit(batch, seed, start, start + BATCH))


def run(count: int, seed: int = 0, first: int = 0, jobs: int = 1) -> Counter[str]:
    """Compare at least this number of tensors, in whole batches unless they are few."""
    if count < BATCH:
        return batch(seed, first, first + count)
    seen: Counter[str] = Counter()
    for found in batches(seed, first, jobs):
        before = seen["tensors"] // 100_000
        seen.update(found)
        if seen["tensors"] // 100_000 > before:
            print(f"{seen['tensors']:,}", file=sys.stderr, flush=True)
        if seen["tensors"] >= count:
            break
    return seen


def main() -> None:
    """Run, and print the compared items."""
    parser = argparse.ArgumentParser(prog="python -m tests.cabac.million", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="tensors, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first payload")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    started = time.perf_counter()
    seen = run(options.count, options.seed, options.first, options.jobs)
    print(f"seed {options.seed}: no disagreement; {time.perf_counter() - started:.0f} s")
    for name, number in seen.most_common():
        print(f"{name}: {number:,}")


if __name__ == "__main__":
    main()
