"""Damaged and random bitstreams give tensors or an NnrError, quickly and within the limits (see hostile.py)."""

from __future__ import annotations

import contextlib
import random
import re
import resource
import tracemalloc
import warnings
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nnr_cli.main import run

import nnr_codec as nnr
from nnr_codec.bitstream.payload import parts as coded_parts
from nnr_codec.constants import NNR_PT_BLOCK, NNR_PT_RAW_FLOAT
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits
from nnr_codec.syntax import Sampler, SampleReader
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader

from .builder import Bitstream
from .hostile import STRICT, Subject, flips, header_bytes, outcome, subjects, trial, truncations
from .hostile_cuts import WHOLE, CutTally, Cutter
from .hostile_flips import Flipper, FlipTally
from .shared import examples
from .soon import soon
from .syntax.samples import AnyTopology, draw_from

pytestmark = pytest.mark.medium

SUBJECTS = {subject.id: subject for subject in subjects("valid", "acceptable")}

#: One stream for each tool: payload types, scan orders, codebooks, blocks, updates, both editions.
FEW = [
    "nncodec-levels/block_bn_rowskip_scan1",
    "nncodec-levels/codebook",
    "nncodec-levels/hdsp",
    "nncodec-levels/nncodec1_cb",
    "nncodec-levels/nncodec1_scan",
    "nncodec-levels/tcm_dq/tcm_dq_1.nnc",
    "nncodec-levels/block_bnf",
    "nncodec-v1/block_ls",
    "nncodec-v1/mixed_int_float",
    "nncodec-v2/codebook1_dq",
    "nncodec-v2/incr_pre/02.nnr",
    "nncodec-v2/incr_hdsp_tca_dq",
    "nncodec-v2/incr_tca_rowskip/01.nnr",
    "nncodec-v2/int32",
    "nncodec-v2/mixed_int_float",
    "nncodec-v2/rowskip_scan2",
    "nncodec-v2/scan1_dq",
]


def each(names: Iterable[str]) -> list[object]:
    """Return parameters with these names; all but every fourth one are slow."""
    return [pytest.param(SUBJECTS[name], id=name, marks=slow_but(k % 4)) for k, name in enumerate(names)]


def slow_but(number: int) -> pytest.MarkDecorator | tuple[()]:
    """Return the marks of a parameter by its number: only the first one is not slow."""
    return pytest.mark.slow if number else ()


def check(subject: Subject, every_byte: bool) -> None:
    data, headers = subject.data, subject.header_bytes
    assert outcome(data, subject) == "valid"
    payloads = sorted(set(range(len(data))) - set(headers))
    cuts = range(len(data)) if every_byte else sorted({*headers, *payloads[::16]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tally = trial(subject.id, truncations(data, cuts), subject)
    # A bitstream may end after any unit but the first; every other cut is detected.
    assert tally.outcomes["valid"] < len(subject.units)
    trial(subject.id, flips(data, headers), subject)
    for k, bit in enumerate([3] if not every_byte else range(8)):  # one bit of each byte, all bits in turn
        trial(subject.id, flips(data, payloads[k :: 8 if every_byte else 16], bits=[bit]), subject)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < 400, f"{grown:.0f} MB"


@pytest.mark.parametrize("subject", each(FEW))
def test_truncated_and_flipped(subject: Subject) -> None:
    check(subject, every_byte=False)


@pytest.mark.slow
@pytest.mark.parametrize("subject", each([name for name in SUBJECTS if name.startswith("nncodec-")][::5]))
def test_truncated_and_flipped_everywhere(subject: Subject) -> None:
    """A sample of the vectors; ``python -m tests.hostile_full`` tests all."""
    check(subject, every_byte=True)


# ------------------------------------------------------------------------------------------------ every vector
#: Number of tests that the vectors are divided among.
SHARES = 16


def share(number: int) -> list[Subject]:
    """Return some of the vectors, from all groups."""
    return list(SUBJECTS.values())[number::SHARES]


def spread(positions: Sequence[int], most: int) -> Sequence[int]:
    """Return some of the items, evenly spaced."""
    return positions[:: -(-len(positions) // most) or 1]


@pytest.mark.parametrize("number", [pytest.param(number, marks=slow_but(number)) for number in range(SHARES)])
def test_cuts_of_every_vector(number: int) -> None:
    """Cuts are between units, and at some places within them; ``python -m tests.hostile_full`` cuts everywhere."""
    tally = CutTally()
    for subject in share(number):
        cutter = Cutter(subject)
        within = sorted(set(range(len(subject.data))) - cutter.boundaries)
        tally.add(cutter.try_all(sorted({*spread(sorted(cutter.boundaries)[:-1], 8), *spread(within, 2)})))
    assert tally.outcomes[WHOLE]
    assert tally.outcomes[f"{WHOLE}, IncompleteError"]
    assert tally.outcomes["TruncatedError"]


@pytest.mark.parametrize("number", [pytest.param(number, marks=slow_but(number)) for number in range(SHARES)])
def test_flips_in_every_vector(number: int) -> None:
    """Some bits of the headers are inverted; ``python -m tests.hostile_full`` inverts all."""
    tally = FlipTally()
    for k, subject in enumerate(share(number)):
        if not Cutter(subject).refused:
            tally.add(Flipper(subject).try_all(spread(subject.header_bytes, 3), [(k + number) % 8]))
    assert tally.outcomes["ElementError"]
    assert not tally.unforeseen


def test_a_judge_of_cuts_can_say_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check detects a decoder that accepts truncated bitstreams."""
    cutter = Cutter(SUBJECTS["NNR-SYN-008"])
    last_tensor = cutter.subject.boundaries[-2]
    assert cutter.try_all([last_tensor]).outcomes == {f"{WHOLE}, IncompleteError": 1}
    monkeypatch.setattr(BitstreamParser, "check_complete", lambda _: None)
    with pytest.raises(AssertionError, match=f"NNR-SYN-008, first {last_tensor} bytes"):
        cutter.try_all([last_tensor])


@pytest.mark.parametrize(
    ("name", "units", "said"),
    [
        ("NNR-SYN-008", 1, "has no NNR_MPS"),
        ("NNR-SYN-008", 2, "has no NNR_TPL"),
        ("NNR-SYN-008", 3, "0 of 2 tensors; 'a', 'b' missing"),
        ("NNR-SYN-008", 4, "1 of 2 tensors; 'a' missing"),
    ],
)
def test_the_command_says_that_a_bitstream_is_incomplete(
    name: str, units: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subject, source, target = SUBJECTS[name], tmp_path / "in.nnr", tmp_path / "out.npz"
    source.write_bytes(subject.data[: subject.boundaries[units - 1]])
    assert run(["decode", str(source), "-o", str(target)]) not in (0, 2)
    assert re.search(f"incomplete.*{said}", capsys.readouterr().err.replace("\n", " "))
    assert not target.exists()
    for command in ("verify", "ls"):
        run([command, str(source)])
        told = capsys.readouterr()
        assert re.search("incomplete|topology_carriage_flag is 1", (told.out + told.err).replace("\n", " ")), command


# ------------------------------------------------------------------------------------------------ readers
@pytest.mark.slow
@pytest.mark.parametrize("name", ["nncodec-v2/mixed_int_float", "nncodec-levels/block_bnf", "nncodec-levels/codebook"])
def test_memory_while_a_damaged_header_is_decoded(name: str) -> None:
    """Allocated memory, not only touched memory, is within twice the limit of one bitstream."""
    data = SUBJECTS[name].data
    limits = Limits(max_tensor_bytes=1 << 20, max_total_bytes=1 << 20, max_names=1000, max_codebook=1000)
    tracemalloc.start()
    try:
        for what, damaged in flips(data, header_bytes(data)):
            tracemalloc.reset_peak()
            outcome(damaged, limits=limits)
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < 4 << 20, f"{what}: {peak:,} bytes"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["nncodec-v2/mixed_int_float", "nncodec-levels/block_bnf", "nncodec-v1/scan1_dq"])
def test_the_readers_without_decoding_are_as_robust(name: str) -> None:
    """The readers are inspect(), units(), and open() with all its tensors."""
    data = SUBJECTS[name].data
    for what, damaged in flips(data, header_bytes(data)):
        for read in (
            lambda data: nnr.inspect(data, limits=STRICT),
            lambda data: list(nnr.units(data, limits=STRICT)),
            lambda data: [value.shape for value in nnr.open(data, limits=STRICT).values()],
        ):
            try:
                read(damaged)
            except NnrError:
                continue
            except Exception as error:
                raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error


# ------------------------------------------------------------------------------------------------ invented input
ENTRY_POINTS = ("cabac_offset_list", "dq_state_list", "bit_offset_delta1", "bit_offset_delta2")
START = SUBJECTS["nncodec-v2/int32"].data[:12]  # NNR_STR and NNR_MPS


def decoded(data: bytes) -> None:
    """Decode with warnings as errors; NnrError is permitted."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            nnr.decode(data, limits=STRICT)
        except NnrError as error:
            assert str(error)


def test_the_start_is_two_units() -> None:
    assert [unit.type_name for unit in nnr.units(START)] == ["NNR_STR", "NNR_MPS"]


@given(data=st.binary(max_size=300))
@settings(max_examples=examples(300), deadline=None)
def test_random_bytes(data: bytes) -> None:
    decoded(data)


@given(kind=st.integers(0, 63), flags=st.integers(0, 3), content=st.binary(max_size=200), profile=st.integers(0, 1))
@settings(max_examples=examples(500), deadline=None)
def test_random_units(kind: int, flags: int, content: bytes, profile: int) -> None:
    """A well-framed unit of any type with random content follows a valid beginning."""
    unit = (len(content) + 3).to_bytes(2, "big") + bytes([kind << 2 | flags]) + content
    decoded(START[:3] + bytes([profile]) + START[4:] + unit)


@given(
    payload_type=st.integers(0, 3), flags=st.integers(0, 7), content=st.binary(max_size=200), name=st.binary(max_size=3)
)
@settings(max_examples=examples(500), deadline=None)
def test_random_compressed_data_units(payload_type: int, flags: int, content: bytes, name: bytes) -> None:
    """Random bytes follow the name, at the flags and counts."""
    body = bytes([payload_type << 3 | flags]) + (b"" if flags & 4 else name + b"\0") + content
    decoded(START + (len(body) + 3).to_bytes(2, "big") + b"\x16" + body)


class EveryTopology(AnyTopology):
    """Topology that declares the dimensions of every tensor and is not empty."""

    def __len__(self) -> int:
        return 1


def invented(seed: int) -> bytes:
    """Return a bitstream of units with random headers, valid by the syntax tables; payloads are zeros or random."""
    rnd = random.Random(seed)
    flag = rnd.getrandbits
    profile = flag(1)
    stream = Bitstream(EveryTopology()).str_(profile)
    stream.mps(rnd.randrange(8), indexed=flag(1), parent=profile & flag(1), pre=flag(1))
    if stream.session.mps_topology_indexed_reference_flag:
        stream.reference_list(*(f"t{k}" for k in range(100)))
    for _ in range(rnd.randint(1, 3)):
        sampler = Sampler(draw_from(rnd), STRICT)
        plausible = rnd.random() < 0.9
        for _ in range(60):
            with contextlib.suppress(NnrError):  # a value that the table itself rejects
                header = SampleReader(stream.session, sampler).read(NnrCompressedDataUnitHeader)
                dims = stream.session.tensor_dimensions(header)
                ids = header.topology_elem_ids
                reserved = header.nnr_compressed_data_unit_payload_type > NNR_PT_BLOCK
                if plausible and (reserved or not dims or not 0 < prod(dims) <= 5000 or len(set(ids)) < len(ids)):
                    continue
                if plausible and rnd.random() < 0.8:
                    header.__dict__.pop("nnr_decompressed_data_format", None)
                    header.nnr_decompressed_data_format_present_flag = 0
                if plausible and "first_tensor_dimension_shift" in header:
                    header.first_tensor_dimension_shift %= max(len(dims), 1)
                payload = zeros(stream, header) if rnd.random() < 0.8 else rnd.randbytes(rnd.randrange(99))
                stream.ndu(header, payload=payload)
                break
    return stream.data


def zeros(stream: Bitstream, header: NnrCompressedDataUnitHeader) -> bytes:
    """Return a payload of zeros that fits a header, if the header permits a payload."""
    size = prod(stream.session.tensor_dimensions(header))
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        return bytes(4 * min(size, 5000))
    lists = {name: header.present()[name] for name in ENTRY_POINTS if name in header}
    try:
        parts = coded_parts(header, stream.session)
        if sum(prod(part.dims) for part in parts) > 5000:
            return b"\x80"
        return stream.payload(header, [np.zeros(part.dims, np.int32) for part in parts], qp=-1)
    except (NnrError, ValueError):
        return b"\x80"
    finally:
        for name in ENTRY_POINTS:
            header.__dict__.pop(name, None)
        header.__dict__.update(lists)


def refused_or_decoded(data: bytes) -> None:
    """Decode; a result and an NnrError are both permitted."""
    with contextlib.suppress(NnrError):
        nnr.decode(data, limits=STRICT, topology_dimensions=EveryTopology())


@pytest.mark.parametrize("first", [pytest.param(first, marks=slow_but(first)) for first in range(0, 2000, 250)])
def test_random_headers(first: int) -> None:
    """The headers include combinations that no encoder writes."""
    for seed in range(first, first + 250):
        data = invented(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                soon(lambda: refused_or_decoded(data), 1)  # noqa: B023
            except Exception as error:
                raise AssertionError(f"invented({seed}): {type(error).__name__}: {error}") from error


@given(data=st.data())
@settings(max_examples=examples(400), deadline=None)
def test_mutated_streams(data: st.DataObject) -> None:
    """Several changes are combined: bytes overwritten, removed or repeated, and parts of another stream."""
    subject = SUBJECTS[data.draw(st.sampled_from(FEW))]
    content = bytearray(subject.data)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 12))
        kind = data.draw(st.sampled_from(["overwrite", "remove", "double", "insert", "splice"]))
        if kind == "overwrite":
            content[at : at + length] = data.draw(st.binary(min_size=length, max_size=length))
        elif kind == "remove":
            del content[at : at + length]
        elif kind == "double":
            content[at:at] = content[at : at + length]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(max_size=12))
        else:
            other = SUBJECTS[data.draw(st.sampled_from(FEW))].data
            content[at:] = other[data.draw(st.integers(0, len(other))) :]
    outcome(bytes(content), subject)
