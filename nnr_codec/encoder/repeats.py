"""Search for runs of items that are copies of earlier items, also reversed or negated.

docs/reference/side-information.md describes the runs. Windows of equal magnitudes, in the same or the reverse order,
have equal keys. Windows are selected by their keys, so that the copy of a selected window is selected too, wherever it
is. A sample of windows rules out most tensors. In the others, each selected window is compared with the first and the
last earlier window of equal key. If it is a copy, the longest run around it that does not overlap its source is kept.
All steps take linear time, apart from sorting the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import ceil, prod
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..dtypes import StoredType, bit_patterns
from ..model import Array
from ..sideinfo.record import Repeats
from .distinct_values import CHUNK

Patterns = npt.NDArray[np.unsignedinteger[Any]]
Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]

#: Bits of a window, and its smallest and largest number of items. Windows of random items are then rarely equal, and
#: the shortest run, one window, saves more than the 4 bytes that it takes in the record.
WINDOW_BITS, SMALLEST, LARGEST = 56, 4, 128
#: Fewest nonzero items of a window: windows of zeros are equal without being copies.
NONZERO = 2
#: Windows of a sample, the largest share of all windows, and the share of repeated ones that a search requires.
WINDOWS, SAMPLED, SHARE = 4096, 8, 1 / 32
#: Most windows that are selected in a search.
MOST = 1 << 20
#: Windows after which a search ends if less than SHARE of the items before them are copies.
TRIALS = 512
#: Largest number of runs: their text in the record takes less than 1 MiB.
MOST_RUNS = 1 << 15
#: Share of copied items that whole rows must have to replace runs that begin or end within rows.
IN_ROWS = 0.95

_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class CopiedRun(NamedTuple):
    """Run of copied items: first item, number of items, first item of the source, and change; see :class:`Repeats`."""

    start: int
    length: int
    source: int
    change: int


def find_repeats(array: Array, stored: StoredType, bits: float, *, few: bool) -> Iterator[Repeats]:
    """Yield the runs of a tensor in the order of rows, and in the order of columns, if they have many items.

    Parameters
    ----------
    array : ndarray
        Not empty.
    stored : StoredType
        Type of the array.
    bits : float
        Estimated bits of a coded item.
    few : bool
        Many items are equal.
    """
    patterns, shape = bit_patterns(array), array.shape
    if bits * LARGEST < WINDOW_BITS:
        return
    window, rows = max(ceil(WINDOW_BITS / bits), SMALLEST), shape[0] if shape else 1
    width = patterns.size // rows
    places = None if few or patterns.itemsize < 4 else _selected(patterns, stored, 0)
    for columns in (False, True) if min(rows, width) > 1 else (False,):
        stride = width if columns else 1
        some = _selected(patterns, stored, stride) if places is None and patterns.size > 2 * stride else places
        if some is None or not _repeats(patterns, stored, some, window // 2, stride):
            continue
        items = np.ascontiguousarray(patterns.reshape(shape[0], -1).T).reshape(-1) if columns else patterns
        runs = _Search(items, stored, window).runs()
        if not columns and width > 1:
            runs = _in_rows(runs, width)
        if runs:
            ends = [0, *(run.start + run.length for run in runs)]
            yield Repeats(
                tuple(run.start - end for run, end in zip(runs, ends, strict=False)),
                tuple(run.length for run in runs),
                tuple(run.start - run.source for run in runs),
                tuple(run.change for run in runs),
                columns,
            )


def kept_dims(repeats: Repeats, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the items that are not copied: whole rows if runs consist of whole rows."""
    left, width = prod(shape) - repeats.copied, prod(shape[1:])
    whole = not repeats.columns and all(number % width == 0 for number in (*repeats.kept, *repeats.length))
    return (left // width, *shape[1:]) if whole else (left,)


def _in_rows(runs: list[CopiedRun], width: int) -> list[CopiedRun]:
    """Return runs of whole rows if they have nearly all copied items; they let codes use properties of rows."""
    whole = []
    for start, length, source, change in runs:
        skip = -start % width
        rows = (length - skip) // width
        if rows > 0:
            first = source + length - skip - rows * width if change & 1 else source + skip
            swapped = change & 1 | (change & 2) << 1 | (change & 4) >> 1
            whole.append(CopiedRun(start + skip, rows * width, first, swapped if skip & 1 else change))
    copied = sum(run.length for run in whole)
    return whole if copied >= IN_ROWS * sum(run.length for run in runs) else runs


def _magnitudes(patterns: Patterns, stored: StoredType) -> Patterns:
    """Return patterns that items have in common with their negatives."""
    if stored.kind == "f":
        return patterns & patterns.dtype.type((1 << (stored.bits - 1)) - 1)
    if stored.kind == "i":
        sizes: Patterns = np.abs(patterns.view(f"i{patterns.itemsize}")).view(patterns.dtype)
        return sizes
    return patterns


def _negative(patterns: Patterns, stored: StoredType) -> Patterns:
    """Return the negatives of items; unsigned items themselves, because they have none."""
    if stored.kind == "f":
        return patterns ^ patterns.dtype.type(1 << (stored.bits - 1))
    return np.negative(patterns) if stored.kind == "i" else patterns


def _selected(patterns: Patterns, stored: StoredType, stride: int) -> Places:
    """Return the places of items for a sample, which depend on the magnitudes of the item and of both its neighbors.

    ``stride`` is the distance of the neighbors; 0: the item alone, which suffices if few items are equal.
    """
    wide: Any = np.uint64 if patterns.itemsize == 8 else np.uint32
    bits = 8 * np.dtype(wide).itemsize
    least = wide((1 << bits) - (1 << bits) // max(SAMPLED, patterns.size // WINDOWS))
    factors = [wide(int(odd) & ((1 << bits) - 1)) for odd in _ODD]
    places: list[Places] = []
    for start in range(stride, patterns.size - stride, CHUNK):
        end = min(start + CHUNK, patterns.size - stride)
        hashes: npt.NDArray[Any] = (
            _magnitudes(patterns[start - stride : end + stride], stored).astype(wide, copy=False) * factors[0]
        )
        if stride:
            sides = hashes[: -2 * stride] + hashes[2 * stride :]
            hashes = ((sides ^ sides >> wide(bits // 2)) + hashes[stride:-stride]) * factors[1]
        if not places:
            least = min(least, hashes.max())  # where items have few values, none may be above
        places.append(np.flatnonzero(hashes >= least) + start)
        if sum(map(len, places)) > 4 * WINDOWS:
            break
    return np.concatenate(places)[: 4 * WINDOWS]


def _repeats(patterns: Patterns, stored: StoredType, places: Places, half: int, stride: int) -> bool:
    """Return whether many windows around these places, of items at a distance of ``stride``, have equal magnitudes."""
    places = places[(places >= half * stride) & (places < patterns.size - half * stride)]
    windows = _magnitudes(patterns[places[:, None] + np.arange(-half, half + 1) * stride], stored)
    windows = windows[np.count_nonzero(windows, axis=1) >= NONZERO].astype(np.uint64)
    keys = _mixed(windows[:, half])
    for k in range(1, half + 1):
        keys = _mixed(keys * _ODD[1] + _mixed(windows[:, half - k]) + _mixed(windows[:, half + k]))
    return len(keys) > 0 and len(np.unique(keys)) <= (1 - SHARE) * len(keys)


def _mixed(keys: Keys) -> Keys:
    """Return well-mixed numbers, different for different keys."""
    keys = (keys ^ keys >> np.uint64(32)) * _ODD[0]
    return (keys ^ keys >> np.uint64(29)) * _ODD[2]


def _locality(hashes: Keys, radius: int) -> Keys:
    """Return hashes of each item and its neighbors within a radius; equal for both directions."""
    inner = hashes[radius : len(hashes) - radius]
    for k in range(1, radius + 1):
        sides = hashes[radius - k : len(hashes) - radius - k] + hashes[radius + k : len(hashes) - radius + k]
        inner = _mixed(inner * _ODD[1] + sides)
    return inner


class _Search:
    """Search for the runs of a flat array of items."""

    def __init__(self, items: Patterns, stored: StoredType, window: int) -> None:
        self._items, self._stored, self._window = items, stored, window
        self._signed = items, _negative(items, stored)

    def runs(self) -> list[CopiedRun]:
        """Return the runs in order; an empty list if they cover a small share of the array."""
        found: list[CopiedRun] = []
        end = copied = trials = 0
        for place, matches in groupby(self._matches(), key=itemgetter(0)):
            if place < end:
                continue
            trials += 1
            run = max((self._extended(*match, end) for match in matches), key=attrgetter("length"))
            if run.length:
                found.append(run)
                end, copied = run.start + run.length, copied + run.length
            if len(found) == MOST_RUNS or (trials >= TRIALS and copied < SHARE * place):
                break
        return found if copied >= SHARE * self._items.size / 2 else []

    def _matches(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield selected windows that are copies: place, place of the source, direction, and negated items.

        Sources are the first and the last earlier window of equal key. The direction is 1 for a reversed copy. The last
        number is the sum of 1 if items at even places are negated, and 2 if items at odd places are.
        """
        places, keys = self._windows()
        order = np.argsort(keys, kind="stable")
        keys, ordered = keys[order], places[order]
        starts = np.ones(len(keys), bool)
        starts[1:] = keys[1:] != keys[:-1]
        first = np.empty_like(places)
        last = np.empty_like(places)
        first[order] = ordered[np.maximum.accumulate(np.where(starts, np.arange(len(keys)), 0))]
        last[order[1:]] = ordered[:-1]
        is_repeated = np.empty(len(keys), bool)
        is_repeated[order] = ~starts
        places, first, last = places[is_repeated], first[is_repeated], last[is_repeated]
        together = CHUNK // self._window
        for start in range(0, len(places), together):
            part = slice(start, start + together)
            found = np.concatenate(
                [
                    self._copies(places[part], sources[part], direction)
                    for sources in (first, last)
                    for direction in (0, 1)
                ]
            )
            yield from map(tuple, found[np.argsort(found[:, 0], kind="stable")].tolist())

    def _copies(self, places: Places, sources: Places, direction: int) -> Places:
        """Return rows of place, source, direction and negated items, for windows that are copies."""
        offsets = np.arange(self._window)
        own = self._items[places[:, None] + offsets]
        copy = self._items[sources[:, None] + (offsets[::-1] if direction else offsets)]
        negated = _negative(copy, self._stored)
        fits, signs = np.ones(len(places), bool), np.zeros(len(places), np.int64)
        for parity in (0, 1):
            same, opposite = ((own[:, parity::2] == of[:, parity::2]).all(axis=1) for of in (copy, negated))
            fits &= same | opposite
            signs |= ~same * (1 << ((places + parity) & 1))
        return np.stack([places, sources, np.full_like(places, direction), signs], axis=1)[fits]

    def _windows(self) -> tuple[Places, Keys]:
        """Return the places of selected windows, and their keys: sums of hashes of the items in the window."""
        items, window = self._items, self._window
        radius = min(3, window // 2 - 1)
        mask = np.uint64((1 << (items.size // MOST).bit_length()) - 1)
        places, keys = [], []
        for start in range(0, items.size - window + 1, CHUNK):
            part = _magnitudes(items[start : start + CHUNK + window - 1], self._stored)
            sums, nonzero = np.zeros(len(part) + 1, np.uint64), np.zeros(len(part) + 1, np.int32)
            np.cumsum(_locality(_mixed(part.astype(np.uint64)), radius), out=sums[1 + radius : len(sums) - radius])
            np.cumsum(part != 0, out=nonzero[1:])
            every = _mixed(sums[window - radius : len(sums) - radius] - sums[radius : len(sums) - window + radius])
            chosen = np.flatnonzero((every & mask == 0) & (nonzero[window:] - nonzero[:-window] >= NONZERO))
            places.append(chosen + start)
            keys.append(every[chosen])
        return np.concatenate(places), np.concatenate(keys)

    def _extended(self, place: int, source: int, direction: int, signs: int, end: int) -> CopiedRun:
        """Return the longest run from ``end`` on that includes a window and whose source ends before it."""
        window, size = self._window, self._items.size
        if direction:  # item place + k is a copy of item mirror - k
            mirror = source + window - 1
            after = self._equal(place, mirror, size - place, 1, -1, signs)
            before = self._equal(place - 1, mirror + 1, place - end, -1, 1, signs)
            before = max(min(before, (place - 1 - mirror) // 2), 0)
            start, length = place - before, before + after
            first = mirror - after + 1
        else:
            after = self._equal(place, source, min(size - place, place - source), 1, 1, signs)
            before = self._equal(place - 1, source - 1, min(place - end, source), -1, -1, signs)
            before = min(before, place - source - after)
            start, length = place - before, before + after
            first = source - before
        if length < window or first + length > start:
            return CopiedRun(place, 0, source, 0)
        even, odd = signs >> (start & 1) & 1, signs >> (~start & 1) & 1
        return CopiedRun(start, length, first, direction | even << 1 | odd << 2)

    def _equal(self, place: int, source: int, most: int, step: int, source_step: int, signs: int) -> int:
        """Return the number of items from ``place`` on, at most ``most``, that equal the items from ``source`` on."""
        most = min(most, source + 1 if source_step < 0 else self._items.size - source)
        count, together = 0, 64
        while count < most:
            more = min(together, most - count)
            own = _stretch(self._items, place + step * count, more, step)
            equal = np.empty(more, bool)
            for parity in (0, 1):
                of_sign = self._signed[signs >> ((place + step * (count + parity)) & 1) & 1]
                copy = _stretch(of_sign, source + source_step * count, more, source_step)
                np.equal(own[parity::2], copy[parity::2], out=equal[parity::2])
            if not equal.all():
                return count + int(equal.argmin())
            count, together = count + more, 2 * together
        return max(most, 0)


def _stretch(items: Patterns, start: int, count: int, step: int) -> Patterns:
    """Return ``count`` items from ``start`` on, in steps of 1 or -1."""
    return items[start : start + count] if step > 0 else items[start - count + 1 : start + 1][::-1]
