"""NNR-SID-301 on: matrices stored as displacements in side information of version 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .bits import f4
from .case import Content, Tensor
from .recorded import Recorded, case, entry, nearest, patterned, recorded, refused, text

UNIT = "w_displacement"


def made(moved: Sequence[Sequence[Any]], corner: int, name: str = "float32") -> Tensor:
    """Return the matrix with this displacement: each number plus its upper left neighbor."""
    rows: list[list[Fraction]] = []
    for moved_row in moved:
        row = [Fraction(float(value)) for value in moved_row]
        if rows:
            above = rows[-1]
            row = [value + (above[j - 1] if j else corner * above[-1]) for j, value in enumerate(row)]
        rows.append(row)
    return patterned(name, np.array([[nearest(name, value) for value in row] for row in rows], np.uint64))


def displaced(tensors: Any, **more: Any) -> Recorded:
    """Return a bitstream that starts with a record of version 2."""
    return recorded(tensors, nnr_codec=2, parameters={"density": 2}, **more)


def words(s: Recorded, moved: Any, name: str = UNIT) -> Recorded:
    """Write the unit of a displacement."""
    array = np.array(moved, "<f4")
    s.words(name, array.tobytes(), array.shape)
    return s


MOVED = [[1, -2, 0.5, 3], [4, 0.25, -1, 0], [-0.5, 0, 2, 1]]

for number, (corner, what) in enumerate([(0, "Toeplitz"), (1, "circulant"), (-1, "skew-circulant")], 301):

    @case(f"NNR-SID-{number:03}", f"displacement of a matrix, {what}", f"DisplacementCode corner={corner}")
    def matrix(corner: int = corner) -> Content:
        members = {"corner": corner} if corner else {}
        s = words(displaced({"w": entry("displacement", "float32", **members)}), MOVED)
        return s.means({"w": made(MOVED, corner)})


@case("NNR-SID-304", "four dimensions, sums rounded to bfloat16, and a tied tensor", "DisplacementCode same_as")
def tied() -> Content:
    tensors = {"w": entry("displacement", "bfloat16"), "z": {"same_as": "w", "index": 2}}
    moved = np.array([[3, -1, 2, 7], [0.1, 5, 2**-9, -3]], "<f4")
    s = words(displaced(tensors).plain("v"), moved.reshape(2, 2, 1, 2))
    w = made(moved.tolist(), 0, "bfloat16").reshape(2, 2, 1, 2)
    return s.means({"v": f4(1, -2), "w": w, "z": w})


@case("NNR-SID-305", "a unit with a different name and shape, sums rounded to float16", "DisplacementCode unit shape")
def other_unit() -> Content:
    s = displaced({"w": entry("displacement", "float16", unit="other", shape=[4, 1, 2])})
    moved = [[1, 2**-11], [2**-11, 3 * 2**-11], [0.1, 2**-12], [1000, -0.3]]
    words(s, np.array(moved, "<f4").reshape(2, 4), "other")
    return s.means({"w": made(np.array(moved, "<f4").tolist(), 0, "float16").reshape(4, 1, 2)})


@case("NNR-SID-306", "displacements of a single row, a single column and a vector", "DisplacementCode corner=-1")
def narrow() -> Content:
    shapes = {"column": [4, 1], "row": [1, 4], "vector": [4]}
    s = displaced({name: entry("displacement", "float64", corner=-1) for name in shapes})
    values = [1, -2, 0.1, 7]
    for name, shape in shapes.items():
        words(s, np.array(values, "<f4").reshape(shape), f"{name}_displacement")
    exact = np.array(values, "<f4").astype("<f8")
    column = made(exact[:, None].tolist(), -1, "float64")
    return s.means({"column": column, "row": exact[None], "vector": column.reshape(4)})


# ------------------------------------------------------------------------------------------------ rejected
W = entry("displacement", "float32")


def with_record(data: bytes) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with this record and a displacement."""

    def make() -> Recorded:
        s = Recorded()
        s.start()
        return words(s.record(data), MOVED)

    return make


def of_version_2(tensor: Any) -> bytes:
    """Return the text of a record of one tensor."""
    return text({"w": tensor}, nnr_codec=2)


for number, (title, data) in enumerate(
    [
        ("a displacement in version 1 of the record", text({"w": W})),
        ("version 2 of the record without a displacement", text({"w": {"type": "float16"}}, nnr_codec=2)),
        ("corner 2", of_version_2(entry("displacement", "float32", corner=2))),
        ("a corner that is not an integer", of_version_2(entry("displacement", "float32", corner="0"))),
        ("corner true", of_version_2(entry("displacement", "float32", corner=True))),
        ("the default value of corner is present", of_version_2(entry("displacement", "float32", corner=0))),
        ("the default id of the unit is present", of_version_2(entry("displacement", "float32", unit=UNIT))),
        ("a displacement of integers", of_version_2(entry("displacement", "int32"))),
        ("a displacement of a scalar", of_version_2(entry("displacement", "float32", shape=[]))),
        ("the id of the unit is the name of the tensor", of_version_2(entry("displacement", "float32", unit="w"))),
        (
            "two displacements in one unit",
            text({"v": entry("displacement", "float32", unit=UNIT), "w": W}, nnr_codec=2),
        ),
        (
            "a displacement in the unit of the bits of another tensor",
            text({"v": entry("float", "float32", pivot=5, bits=UNIT), "w": W}, nnr_codec=2),
        ),
        (
            "a tensor tied to the unit of a displacement",
            text({"v": {"same_as": UNIT, "index": 0}, "w": W}, nnr_codec=2),
        ),
    ],
    321,
):
    refused(number, title, "DisplacementCode", "ElementError", 2, with_record(data))


def unit_of(name: str, moved: Any = MOVED, **members: Any) -> Callable[[], Recorded]:
    """Return a maker of a bitstream with the unit of a displacement."""
    return lambda: words(displaced({"w": entry("displacement", "float32", **members)}), moved, name)


def of_integers() -> Recorded:
    """Write levels instead of floats."""
    return displaced({"w": W}).levels(UNIT, [[1, 2], [3, 4]])


def without_dimensions() -> Recorded:
    """Write a scalar unit."""
    return displaced({"w": W}).words(UNIT, f4(1).tobytes(), [])


LARGE = [[3e38, 0], [0, 3e38]]
for number, (title, error, unit, make) in enumerate(
    [
        ("a unit with the name of the tensor", "ElementError", 3, unit_of("w")),
        ("integers in the unit of a displacement", "ElementError", 3, of_integers),
        ("a displacement with more items than the tensor", "ElementError", 3, unit_of(UNIT, shape=[3, 3])),
        ("a displacement without dimensions", "ElementError", 3, without_dimensions),
        ("sums outside the range of float32", "ElementError", 3, unit_of(UNIT, LARGE)),
        ("a displacement that is not finite", "ElementError", 3, unit_of(UNIT, [[np.inf, 0], [0, 0]])),
        ("the unit of the displacement is missing", "IncompleteError", None, lambda: displaced({"w": W}).plain("v")),
    ],
    341,
):
    refused(number, title, "DisplacementCode", error, unit, make)

refused(
    351,
    "more additions than max_decomp_elements",
    "limits",
    "LimitError",
    3,
    unit_of(UNIT),
    limits={"max_decomp_elements": 3 * 2048},
)
