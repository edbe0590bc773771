"""States as files: round trips, and damaged or hostile files."""

from __future__ import annotations

import hashlib
import io
import random
import struct
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_INT
from nnr_codec.decoder.lineage import Position
from nnr_codec.decoder.state import Digest, UpdateNode
from nnr_codec.errors import NnrError
from nnr_codec.limits import Limits

from ..builder import ndu
from .support import contents
from .test_parents import DIMS, LEVELS, by_hash, decoded, external, line, start, two, update

UNLIMITED = Limits.unlimited()
GOLDEN = Path(__file__).parents[1] / "data" / "update-state-1.bin"


def full() -> nnr.UpdateState:
    """Return a state with every kind of content."""
    plain = start(parent=0).ndu(ndu("é", DIMS), LEVELS[1]).data
    decoder = decoded(
        two(0, 0, parent=0, kind=NNR_PT_INT),
        two(1, 1, kind=NNR_PT_INT),
        *line(3),
        external(7, device=9, pre=1),
        plain,
        by_hash(plain, 2, name="é"),
    )
    return decoder.state


def saved(state: nnr.UpdateState, path: Path) -> bytes:
    state.save(path, overwrite=True)
    return path.read_bytes()


def sealed(content: bytes) -> bytes:
    """Return data with its digest."""
    return content + hashlib.sha256(content).digest()


def test_a_file_of_version_1_stays_readable() -> None:
    """The file in tests/data is never written again; a new version of the format gets another file."""
    assert contents(nnr.UpdateState.load(GOLDEN)) == contents(full())


def test_saved_states_come_back(tmp_path: Path) -> None:
    state, path = full(), tmp_path / "state"
    data = saved(state, path)
    for source in (path, str(path), data, io.BytesIO(data)):
        loaded = nnr.UpdateState.load(source)
        assert contents(loaded) == contents(state)
        for sender in loaded.senders.values():
            for node in sender.nodes.values():
                assert all(array.flags.writeable for array in node.levels + node.any_sig + node.updates)
    assert list(tmp_path.iterdir()) == [path]
    assert saved(loaded, path) == data


def test_it_goes_on(tmp_path: Path) -> None:
    """Contexts, residuals, lineages and hashes are the same as in the saved state."""
    path, made = tmp_path / "state", line(5)
    decoded(update(1), *made[:4]).state.save(path)
    decoder = nnr.UpdateDecoder(state=nnr.UpdateState.load(path))
    np.testing.assert_array_equal(decoder.decode(update(2, pre=1, co_loc=LEVELS[1]))["w"], LEVELS[1] + LEVELS[2])
    with pytest.raises(nnr.MissingReferenceError, match="is repeated"):
        decoder.decode(made[3])
    decoder.decode(made[4])
    with pytest.raises(nnr.MissingReferenceError, match="has a parent of another"):
        decoder.decode(by_hash(update(1), 3))


@pytest.mark.parametrize("keep", [False, True])
def test_an_empty_state(tmp_path: Path, keep: bool) -> None:
    data = saved(nnr.UpdateState(keep_digests=keep), tmp_path / "state")
    assert data == sealed(b"NNRSTATE" + struct.pack("<III", 1, keep, 0))
    loaded = nnr.UpdateState.load(data)
    assert (len(loaded), loaded.keep_digests, loaded.trusting) == (0, keep, not keep)


def test_the_format(tmp_path: Path) -> None:
    """The bytes follow the description of the module."""
    state = nnr.UpdateState(keep_digests=True)
    node = UpdateNode(3, name="w", digests=(Digest(bytes(range(32)), bytes(range(64))),))
    node = node._replace(levels=(np.array([[1, -2]], np.int32),), any_sig=(np.array([[True, False]]),))
    state.put((None, "w"), node._replace(updates=(np.array([[0.5, -1.0]], np.float16),)), UNLIMITED)
    state.put((7, 5), UpdateNode(0, name="v"), UNLIMITED)
    state.place(7, Position(2, "t" * 16), UNLIMITED)
    state.remember(7, {"v": ((2, 0), "bfloat16")}, UNLIMITED)

    def text(value: bytes) -> bytes:
        return struct.pack("<I", len(value)) + value

    shape = struct.pack("<IQQ", 2, 1, 2)
    expected = b"NNRSTATE" + struct.pack("<III", 1, 1, 2)
    expected += struct.pack("<qQ", -1, 0) + text(b"") + struct.pack("<II", 0, 1)
    expected += text(b"w") + text(b"w") + struct.pack("<QI", 3, 1) + bytes(range(32)) + bytes(range(64))
    expected += struct.pack("<IB", 1, 0) + shape + struct.pack("<ii", 1, -2)
    expected += struct.pack("<IB", 1, 1) + shape + b"\x80"
    expected += struct.pack("<IB", 1, 3) + shape + b"\x00\x38\x00\xbc"
    expected += struct.pack("<qQ", 7, 2) + text(b"t" * 16)
    expected += struct.pack("<I", 1) + text(b"v") + text(b"bfloat16") + struct.pack("<IQQ", 2, 2, 0)
    expected += struct.pack("<IQ", 1, 5) + text(b"v") + struct.pack("<QIIII", 0, 0, 0, 0, 0)
    assert saved(state, tmp_path / "state") == sealed(expected)
    assert contents(nnr.UpdateState.load(sealed(expected))) == contents(state)


def test_an_existing_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        full().save(path)
    assert path.read_bytes() == b"mine"


# ------------------------------------------------------------------------------------------------ damage
#: The beginning of a file of one device; a tensor of its schema; a node up to the items of an array of three flags.
DEVICE = b"NNRSTATE" + struct.pack("<IIIq", 1, 1, 1, 3)
TENSOR = struct.pack("<II", 0, 7) + b"float32" + bytes(4)
NODE = struct.pack("<QIQIIIBIQ", 1, 0, 0, 0, 0, 1, 1, 1, 3)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not an update state file"),
        (b"NNRSTATE", "damaged"),
        (b"\x80\x04}." * 20, "not an update state file"),
        (sealed(b"NNRSTATE" + struct.pack("<II", 2, 0)), "has version 2; only version 1 is supported"),
        (sealed(b"NNRSTATE" + struct.pack("<I", 1)), "the file ends early"),
        (sealed(b"NNRSTATE" + struct.pack("<III", 1, 0, 0) + b"x"), "data follows the last sender"),
        (sealed(b"NNRSTATE" + struct.pack("<III", 1, 0, 1 << 31)), "a list of 2,147,483,648"),
        (sealed(b"NNRSTATE" + struct.pack("<III", 1, 2, 0)), "keep_digests is 2"),
        (sealed(DEVICE + struct.pack("<QI", 0, 1) + b"t" + bytes(8)), "a token has no lineage"),
        (sealed(DEVICE + struct.pack("<QII", 0, 0, 2) + 2 * TENSOR + bytes(4)), "tensor .* occurs twice"),
        (
            sealed(DEVICE + bytes(16) + struct.pack("<I", 1) + NODE + b"\xa1" + bytes(4)),
            "the bits after the last flag are not 0",
        ),
    ],
)
def test_other_files(data: bytes, match: str) -> None:
    with pytest.raises(nnr.FormatError, match=match):
        nnr.UpdateState.load(data)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    data = bytearray(saved(full(), tmp_path / "state"))
    for k in range(0, len(data), 7):
        data[k] ^= 4
        with pytest.raises(nnr.FormatError):
            nnr.UpdateState.load(bytes(data))
        data[k] ^= 4
    for size in range(0, len(data), 11):
        with pytest.raises(nnr.FormatError):
            nnr.UpdateState.load(bytes(data[:size]))
    nnr.UpdateState.load(bytes(data))


@pytest.mark.medium
@pytest.mark.parametrize("seed", range(5))
def test_hostile_files(seed: int, tmp_path: Path) -> None:
    """A file with a correct digest is loaded as a usable state, or rejected."""
    data, pick = saved(full(), tmp_path / "state")[:-32], random.Random(seed)
    limits, refused = Limits.strict(), 0
    for _ in range(400):
        content = bytearray(data)
        for _ in range(pick.choice([1, 1, 2, 5])):
            place = pick.randrange(8, len(content))
            content[place : place + pick.choice([0, 1, 4, 8])] = pick.randbytes(pick.choice([0, 1, 4, 8]))
            if pick.random() < 0.3:
                content[place : place + 4] = pick.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f", b"\1\0\0\0"])
        try:
            state = nnr.UpdateState.load(sealed(bytes(content)), limits=limits)
        except NnrError:
            refused += 1
            continue
        for last in (update(2, pre=1, co_loc=LEVELS[1]), two(2, 2, pre=1), line(4)[3]):
            try:
                nnr.UpdateDecoder(state=state, limits=limits).decode(last)
            except NnrError:
                continue
    assert 100 < refused < 400


def test_what_a_file_may_cost(tmp_path: Path) -> None:
    """The size is checked before reading, and for flags of one bit each also the size in memory."""
    state = full()
    data = saved(state, tmp_path / "state")
    nnr.UpdateState.load(data, limits=Limits(max_history_bytes=state.nbytes))
    for most in (0, 100, len(data) - 41, state.nbytes - 1):
        with pytest.raises(nnr.LimitError, match="max_history_bytes"):
            nnr.UpdateState.load(data, limits=Limits(max_history_bytes=most))
    count = 1 << 26
    head = b"NNRSTATE" + struct.pack("<IIIqQIIIQIQI", 1, 0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0)
    flags = sealed(head + struct.pack("<IIBIQ", 0, 1, 1, 1, count) + bytes(count // 8) + bytes(4))
    nnr.UpdateState.load(flags)
    with pytest.raises(nnr.LimitError, match="arrays"):
        nnr.UpdateState.load(flags, limits=Limits(max_history_bytes=count - 1))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(nnr.LimitError, match="bytes of the state file"):
        nnr.UpdateState.load(path)
