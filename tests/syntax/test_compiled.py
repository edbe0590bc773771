"""Functions generated from tables give the results of interpreting the tables, also for damaged structures."""

from __future__ import annotations

import copy
import inspect
import random
from collections.abc import Callable
from typing import Any

import pytest

from nnr_codec.limits import Limits
from nnr_codec.syntax import (
    TABLES,
    BitCounter,
    BitReader,
    BitWriter,
    Reader,
    Session,
    Structure,
    Writer,
    compiled,
    tables,
)
from nnr_codec.syntax.coder import LIMITED
from nnr_codec.syntax.structures import NnrCompressedDataUnitHeader, NnrStartUnitHeader, NnrUnitHeader, NnrUnitSize

from .samples import samples, write

pytestmark = pytest.mark.medium

LIMITS = (Limits(), Limits(max_eg_bits=8, max_names=5, max_codebook=10, max_dims=3, max_name_bytes=6))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use generated functions from the first structure on."""
    monkeypatch.setattr(compiled, "OFTEN", 0)


def ignore(*_: object) -> None:
    """Trace nothing; a trace makes the reader interpret tables."""


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or all properties of its error."""
    try:
        return call()
    except Exception as error:  # any state of a writer, in which set elements do not matter
        return type(error), str(error), vars(error)


def in_order(structure: Structure) -> list[Any]:
    """Return everything that is set, in order, with not-a-numbers by their bits."""
    return [
        (name, in_order(value) if isinstance(value, Structure) else (type(value), repr(value)))
        for name, value in vars(structure).items()
    ]


def reading(data: bytes, cls: type[Structure], session: Session, limits: Limits, trace: Any) -> Any:
    """Return the result of a reader for the data, and its final position."""

    def call() -> Any:
        reader = Reader(session, BitReader(data, 0, limits), trace)
        structure = reader.read(cls, "name")
        return in_order(structure), reader.io.pos, reader.items, reader.path

    return outcome(call)


def damaged(data: bytes, rnd: random.Random) -> list[bytes]:
    """Yield the data, and variants of it."""
    flipped = bytearray(data)
    if flipped:
        flipped[rnd.randrange(len(flipped))] ^= 1 << rnd.randrange(8)
    return [data, bytes(flipped), data[: rnd.randrange(len(data) + 1)], data + rnd.randbytes(5)]


@pytest.mark.parametrize("name", TABLES)
def test_reading(name: str) -> None:
    rnd, cls = random.Random(name), TABLES[name]
    for structure, session in samples(name):
        for data in damaged(write(structure, session), rnd):
            for limits in LIMITS:
                walked = reading(data, cls, session, limits, ignore)
                assert reading(data, cls, session, limits, None) == walked


@pytest.mark.parametrize("name", TABLES)
def test_writing(name: str) -> None:
    rnd = random.Random(name)
    for structure, session in [(copy.copy(one), session) for one, session in samples(name)]:
        elements = list(vars(structure))
        for change in range(3 if elements else 1):
            element = rnd.choice(elements) if change else ""
            if change == 1:  # missing
                del vars(structure)[element]
            elif change == 2:  # out of place or range
                vars(structure)[rnd.choice(list(structure.elements))] = rnd.choice([-1, 1 << 40, "ä", [7], None])

            def written(trace: Any, io: Any, structure: Structure = structure, session: Session = session) -> Any:
                io.u(3, 5)
                error = outcome(lambda: Writer(session, io, trace).write(structure))
                return (error, 0) if error else (error, io.pos, io.getvalue() if isinstance(io, BitWriter) else b"")

            for io in (BitWriter, BitCounter):
                assert written(None, io()) == written(ignore, io())


@pytest.mark.parametrize("name", TABLES)
def test_functions_do_it_themselves(name: str) -> None:
    """Valid small structures rarely require interpretation."""
    cls, left = TABLES[name], 0
    read, write_ = compiled.make_reader(cls.table, LIMITED), compiled.make_writer(cls.table)
    for structure, session in samples(name):
        io = BitWriter()
        write_(Writer(session, io), structure)
        assert io.getvalue() == write(structure, session)
        try:
            read(Reader(session, BitReader(io.getvalue())), cls.__new__(cls))
        except ValueError:
            left += 1
    assert left <= len(samples(name)) // 10


def test_a_table_is_walked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    functions = compiled.Compiled(lambda table: made.append(table) or print)
    monkeypatch.setattr(compiled, "OFTEN", 2)
    assert [functions[tables.nnr_unit_size] for _ in range(4)] == [None, None, print, print]
    assert made == [tables.nnr_unit_size]


def test_without_sources_tables_are_walked() -> None:
    def make(table: Any) -> Any:
        raise OSError

    assert [compiled.Compiled(make)[tables.nnr_unit_size] for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("change", [("u(15 +", "u(16 +"), ("t.nnr_unit_size_flag = u(1)", "pass"), ("def ", "def (")])
def test_a_source_that_has_changed_is_not_used(change: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens if a program continues while its packages are replaced."""
    source = inspect.getsource(tables.nnr_unit_size)
    monkeypatch.setattr(inspect, "getsource", lambda _: source.replace(*change))
    assert compiled.Compiled(compiled.make_writer)[tables.nnr_unit_size] is None
    monkeypatch.setattr(inspect, "getsource", lambda _: "# other lines\n")
    assert compiled.Compiled(compiled.make_writer)[tables.nnr_unit_size] is None
    monkeypatch.setattr(inspect, "getsource", lambda _: source)
    assert compiled.Compiled(compiled.make_writer)[tables.nnr_unit_size]


def test_a_path_is_that_of_walking_at_any_depth() -> None:
    header = NnrUnitHeader(nnr_unit_type=0, detail=NnrStartUnitHeader(general_profile_idc=300))
    errors = [
        outcome(lambda trace=trace: Writer(Session(), BitWriter(), trace).write(header)) for trace in (None, ignore)
    ]
    assert errors[0] == errors[1] and "general_profile_idc" in errors[0][1]


def test_lists_that_are_longer_than_a_window() -> None:
    dims = [1000 + k for k in range(32)]
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=2,
        topology_elem_id="n" * 300,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=dims,
    )
    data = write(header)
    read: Any = compiled.make_reader(type(header).table, LIMITED)
    structure = NnrCompressedDataUnitHeader.__new__(NnrCompressedDataUnitHeader)
    read(Reader(Session(), BitReader(data)), structure)
    assert structure.tensor_dimensions == dims and structure.topology_elem_id == "n" * 300


def test_a_reader_of_another_kind_walks() -> None:
    class Own(Reader):
        seen = 0

        def element(self, structure: Structure, name: str, descriptor: Any) -> None:
            self.seen += 1
            super().element(structure, name, descriptor)

    reader = Own(Session(), BitReader(b"\x80\x00\x00\x00"))
    reader.read(NnrUnitSize)
    assert reader.seen == 2
