"""Encoding of a model: units in order, and warnings after the last one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ..bitstream.unit_index import write_index
from ..bitstream.units import UnitReader
from ..compare import Loss
from ..config import EncoderConfig
from ..errors import EncodeError, Option
from ..limits import Limits
from ..syntax import Session
from .block_units import UnitPlan
from .coded_unit import CodedUnit, code_unit
from .encode_warnings import check_blocks, warn_if_larger, warn_of_loss, warn_out_of_reach, warn_unmatched, warn_unused
from .facts import DEFAULT_LIMITS
from .lossless_bound import lossless
from .parts import LayerParameterSets, LayerWriter, PartWriter, Path, check_layers
from .preamble import preamble
from .prepared import Prepared
from .rate_allocation import allocate
from .rate_distortion import CODE_BYTES, RECORD_BYTES, UNIT_BYTES
from .tensor_report import TensorReport
from .tensor_tasks import Pool, TensorReader, TensorTask
from .unit_layout import UnitLayout, plan_units

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..parallel.checkpoint import Checkpoint
    from .resume import Resumption

#: The size of a lossless encoding is measured only if its lower bound is below this fraction of the encoding's bytes.
SURE = 0.99


def encode_units(
    prepared: Prepared,
    config: EncoderConfig,
    note: Callable[[TensorReport], None] | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    statistics: bool = False,
    checkpoint: Checkpoint | None = None,
    asked: EncoderConfig | None = None,
) -> Iterator[bytes]:
    """Yield the units of a model's bitstream.

    Each tensor is read twice, for planning and for coding; only tensors of running tasks are in memory (see
    :class:`Pool`). Units and errors do not depend on ``jobs`` and ``executor``. Goals need further reads and encodings.
    With ``checkpoint``, finished units of the same encoding are reused, and all tensors are read once more. ``asked``
    has the options of the caller: with them, warnings report options without effect, matrices with a large error, and a
    smaller lossless encoding.

    Raises EncodeError with the name of a tensor that cannot be coded as requested.
    """
    model = prepared.model
    read = TensorReader(model)
    if asked and not prepared.links:
        check_blocks(asked, prepared)
        warn_unmatched(asked, {*model.tensors, *prepared.restored.tensors})
    with Pool(jobs, executor) as pool:

        def code(config: EncoderConfig, *arguments: Any) -> Generator[bytes, None, _Done]:
            units = _units(prepared, config, read, pool, *arguments)
            return _indexed(units, config) if config.index else units

        def sizes(config: EncoderConfig) -> tuple[int, dict[str, int]]:
            found: dict[str, int] = {}

            def note(tensor: TensorReport) -> None:
                found[tensor.name] = tensor.unit_bytes

            return sum(map(len, code(config, note))), found

        def settle() -> EncoderConfig:
            return allocate(prepared, config, read, pool, sizes)

        resumption = None
        if checkpoint:
            from .resume import Resumption  # which imports hashlib and pickle

            resumption = Resumption(checkpoint, prepared, config, read, pool)
        settled = resumption.settled(config, settle) if resumption else settle()
        done = yield from code(settled, note, statistics, resumption)
        if not asked:
            return
        warn_of_loss(done.losses, asked, prepared)
        if prepared.links:
            return
        warn_unused(asked, prepared, done.units)
        warn_out_of_reach(asked, done.out_of_reach)
        is_lossless = all(settled.for_tensor(name).exact for name in model.tensors)
        if done.least_bytes < SURE * done.nbytes and not is_lossless:
            with suppress(EncodeError):
                warn_if_larger(done.nbytes, sizes(lossless(asked, model.tensors))[0], asked)


class _Done(NamedTuple):
    """Finished bitstream; ``least_bytes`` is a lower bound of the bytes of a lossless encoding."""

    units: list[UnitPlan]
    nbytes: int
    least_bytes: int
    losses: dict[str, Loss]
    out_of_reach: frozenset[str]


def _indexed(units: Generator[bytes, None, _Done], config: EncoderConfig) -> Generator[bytes, None, _Done]:
    """Yield the units with their index after the first two, NNR_STR and NNR_MPS.

    The index has the headers of later units, which are kept in a temporary file until it is written.
    """
    import tempfile  # not at the top: few encodings have an index

    result: list[_Done] = []

    def finished() -> Iterator[bytes]:
        result.append((yield from units))

    with tempfile.TemporaryFile() as file:
        sizes = [file.write(unit) for unit in finished()]
        file.seek(0)
        reader = UnitReader(file, Limits.unlimited())
        reader.next(), reader.next()
        index = write_index(reader, Session())
        if config.max_unit_size is not None and len(index) > config.max_unit_size:
            limit = Option("max_unit_size", config.max_unit_size)
            raise EncodeError(f"the index has {len(index):,} bytes, more than ", limit, "; only tensors can be split")
        if len(index) > DEFAULT_LIMITS.max_side_info_bytes:
            raise EncodeError(f"an index of {len(index):,} bytes exceeds the default limits of decoders")
        file.seek(0)
        for number, size in enumerate(sizes):
            if number == 2:
                yield index
            yield file.read(size)
    return result[0]._replace(nbytes=result[0].nbytes + len(index))


def _units(
    prepared: Prepared,
    config: EncoderConfig,
    read: TensorReader,
    pool: Pool,
    note: Callable[[TensorReport], None] | None,
    statistics: bool = False,
    resumption: Resumption | None = None,
) -> Generator[bytes, None, _Done]:
    """Yield the units of a bitstream, given options without goals."""
    session = Session()
    layout = plan_units(prepared, config, read, pool)
    sets = _layer_parameter_sets(prepared, layout, config)
    before, references = preamble(prepared, layout, config, session)
    nbytes = least = sum(map(len, before))  # a lossless encoding has these units too
    yield from before
    if config.layer_parameter_sets:
        writer: LayerWriter | PartWriter = LayerWriter(sets, session)
    else:
        writer = PartWriter(sets, session, *[config.parts] if isinstance(config.parts, int) else [])
    index = {name: k for k, name in enumerate(references)}
    coded_plans = [[*plan.tensors.values()] if plan.all_ids else [] for plan in layout.units]
    costs = [sum([tensor.source.nbytes for tensor in tensors]) for tensors in coded_plans]
    whole, links, calls = sum(costs), prepared.links, []
    for plan, path, tensors, cost in zip(layout.units, layout.paths, coded_plans, costs, strict=True):
        names = tuple([tensor.name for tensor in tensors])
        own = {name: index[name] for name in plan.all_ids} if index else index
        link = links.of.get(plan.name) if links else None
        arguments = plan, own, config.max_unit_size, statistics, link
        hints = writer.state(path), pool.threads(cost, whole)
        calls.append(TensorTask(code_unit, read, names, arguments, cost, hints))
    results = resumption.units(calls, before, statistics) if resumption else pool.run(calls)
    losses: dict[str, Loss] = {}
    for plan, path, coded in zip(layout.units, layout.paths, results, strict=True):
        unit_bytes = sum(map(len, coded.units))
        nbytes, least = nbytes + unit_bytes, least + coded.least_bytes
        if len(plan.tensors) == 1 and config.for_tensor(plan.name).exact is None:
            # Planning has already compared lossless codes without a record; other codes need the bytes of the record
            # too.
            with_code = UNIT_BYTES + len(plan.ids[0]) + RECORD_BYTES + CODE_BYTES + coded.least_bytes
            least += max(min(unit_bytes, with_code) - coded.least_bytes, 0)
        losses |= coded.losses
        if note:
            for report in _reports(plan, coded, unit_bytes, losses):
                note(report)
        yield from writer.add(path, coded.units)
    yield from writer.close()
    return _Done(layout.units, nbytes, least, losses, layout.out_of_reach)


def _layer_parameter_sets(prepared: Prepared, layout: UnitLayout, config: EncoderConfig) -> LayerParameterSets:
    """Return the layer parameter sets of the parts or layers. Raises EncodeError for maps that none can have."""
    maps = getattr(config.performance, "layers", {})
    check_layers(maps, layout.paths)
    units: dict[Path, list[UnitPlan]] = {}
    for unit, path in zip(layout.units, layout.paths, strict=True):
        for depth in range(1, len(path) + 1):
            units.setdefault(path[:depth], []).append(unit)
    alone = not config.indexed_references
    return LayerParameterSets(units, layout.qp_density, layout.parameters, maps, prepared.reduced, alone)


def _reports(plan: UnitPlan, coded: CodedUnit, unit_bytes: int, losses: Mapping[str, Loss]) -> Iterator[TensorReport]:
    """Yield the reports of the tensors of a unit; the report of the first tensor has the unit's bytes and seconds."""
    seconds = coded.seconds
    for tensor in plan.plans:
        tied = tensor.record.same_as if tensor.record else ""
        yield TensorReport(
            tensor.name,
            tensor.parameters,
            tensor.source.nbytes,
            unit_bytes,
            seconds,
            coded.statistics.get(tensor.name),
            losses.get(tied or tensor.name),
        )
        unit_bytes, seconds = 0, 0.0
