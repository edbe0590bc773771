"""Channels with individual numbers: they are joined, fixed and reported together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnr_codec.model import Channels, Slice
from nnr_codec.topology import tracks as tracks_module
from nnr_codec.topology.tracks import Tracks


def made(tracks: Tracks, tensor: str, extent: int, axis: int = 0) -> np.ndarray:
    ids = tracks.of(tensor, axis, extent)
    tracks.make(ids)
    return ids


def test_fixed_or_unproduced_channels_are_omitted() -> None:
    tracks = Tracks()
    tracks.of("read", 1, 3)
    tracks.fix(made(tracks, "fixed", 3))
    assert tracks.channels() == ()
    assert Tracks().channels() == ()
    made(tracks, "w", 3)
    assert tracks.channels() == (Channels(3, (Slice("w", 0, makes=True),)),)


def test_some_of_the_channels_fixed() -> None:
    """The rest on both sides is reported separately."""
    tracks = Tracks()
    ids = made(tracks, "w", 6)
    tracks.join(ids, tracks.of("r", 1, 6))
    tracks.fix(ids[2:3])
    assert tracks.channels() == (
        Channels(2, (Slice("w", 0, makes=True), Slice("r", 1))),
        Channels(3, (Slice("w", 0, offset=3, makes=True), Slice("r", 1, offset=3))),
    )


def test_repetitions() -> None:
    tracks = Tracks()
    ids = made(tracks, "w", 3)
    tracks.join(np.repeat(ids, 4), tracks.of("inner", 0, 12))
    tracks.join(np.tile(ids, 4), tracks.of("outer", 0, 12))
    tracks.join(np.tile(np.repeat(ids, 2), 2), tracks.of("both", 0, 12))
    tracks.join(np.concatenate([ids, tracks.fixed(2), ids]), tracks.of("apart", 0, 8))
    (found,) = tracks.channels()
    assert found.size == 3
    assert set(found.parts) == {
        Slice("w", 0, makes=True),
        Slice("inner", 0, inner=4),
        Slice("outer", 0, outer=4),
        Slice("both", 0, outer=2, inner=2),
        Slice("apart", 0),
        Slice("apart", 0, offset=5),
    }


def test_joined_in_a_row() -> None:
    tracks = Tracks()
    ids = [made(tracks, f"w{k}", 4) for k in range(50)]
    for one, other in zip(ids[::-1], ids[-2::-1], strict=False):
        tracks.join(one, other)
    (found,) = tracks.channels()
    assert (found.size, len(found.parts)) == (4, 50)


def test_other_orders_are_listed_one_by_one() -> None:
    tracks = Tracks()
    ids = made(tracks, "w", 4)
    tracks.join(ids[::-1], tracks.of("r", 0, 4))
    assert tracks.channels() == tuple(
        Channels(1, (Slice("w", 0, offset=k, makes=True), Slice("r", 0, offset=3 - k))) for k in range(4)
    )


@given(st.data())
def test_every_index_is_listed_once(data: st.DataObject) -> None:
    """For any joins, channels have the indices of equal tracks only."""
    extents = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    tracks = Tracks()
    arrays = [made(tracks, f"t{k}", extent) for k, extent in enumerate(extents)]
    every = [(f"t{k}", i) for k, extent in enumerate(extents) for i in range(extent)]
    number = {place: k for k, place in enumerate(every)}
    same = {k: {k} for k in range(len(every))}
    fixed = set(data.draw(st.lists(st.sampled_from(range(len(every))), max_size=2)))
    for k in fixed:
        name, i = every[k]
        tracks.fix(arrays[int(name[1:])][i : i + 1])
    for one, other in data.draw(st.lists(st.tuples(*[st.sampled_from(range(len(every)))] * 2), max_size=8)):
        (a, i), (b, j) = every[one], every[other]
        tracks.join(arrays[int(a[1:])][i : i + 1], arrays[int(b[1:])][j : j + 1])
        union = same[one] | same[other]
        for k in union:
            same[k] = union
    expected = {frozenset(group) for group in map(frozenset, same.values()) if not group & fixed}
    found = []
    for group in tracks.channels():
        for c in range(group.size):
            places = {
                number[part.tensor, part.offset + (o * group.size + c) * part.inner + i]
                for part in group.parts
                for o in range(part.outer)
                for i in range(part.inner)
            }
            found.append(frozenset(places))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_each_place_is_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for any number of groups of channels."""
    sort, done = tracks_module._sorted, []
    monkeypatch.setattr(tracks_module, "_sorted", lambda ids: done.append(len(ids)) or sort(ids))
    tracks = Tracks()
    ids = np.concatenate([made(tracks, f"w{k}", 2) for k in range(20)])
    tracks.join(ids, tracks.of("r", 1, len(ids)))
    assert len(tracks.channels()) == 20
    assert sorted(done) == [2] * 20 + [40]
