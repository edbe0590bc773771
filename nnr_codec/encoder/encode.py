"""Plans to units: headers and what stands in them (ISO/IEC 15938-17:2024, 6.3.3.7)."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..bitstream.ndu import Run, code_tensors, write_ndu, write_payload
from ..bitstream.payload import Coded, parts, quantization, tensor_syntax
from ..cabac_ext.kernel import TensorSyntax
from ..compare import Loss
from ..config import EncoderConfig
from ..constants import NNR_CPT_DC, NNR_PT_BLOCK, NNR_PT_RAW_FLOAT, DecompressedDataFormat
from ..errors import EncodeError
from ..model import Array
from ..syntax import Session
from ..syntax.structures import NnrCompressedDataUnitHeader
from . import pruned
from .allocate import allocate
from .blocks import UnitPlan
from .contexts import groups_of, refer
from .cost import CODE_BYTES, RECORD_BYTES, UNIT_BYTES
from .distortion import loss
from .encode_warnings import warn_if_larger, warn_of_loss
from .layout import plan_units, side_info
from .links import Link
from .lossless import least_bytes, lossless
from .plan import TensorPlan
from .preamble import preamble
from .prepare import Prepared
from .quantize import Groups, as_coded, contents
from .resume import Resumption
from .schedule import Call, Pool, Reader
from .statistics import TensorStatistics, tensor_statistics
from .tools import Part, choose_tools
from .unused_options import check_blocks, warn_unmatched, warn_unused

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..parallel.checkpoint import Checkpoint

#: A lossless encoding is sized only if the lower bound of its bytes is below this part of the encoding's bytes.
SURE = 0.99
DEFAULT_FORMATS = (DecompressedDataFormat.TENSOR_INT32, DecompressedDataFormat.TENSOR_FLOAT32)


@dataclass(frozen=True)
class TensorReport:
    """What became of one tensor; the unit of a block counts for the first of its tensors, the weight.

    ``seconds`` are those of its coding, apart from the planning; ``statistics`` are None unless they were asked for.
    ``loss`` is its error; None for integers, and for tensors that decoders do not return by themselves.
    """

    name: str
    parameters: int
    source_bytes: int
    unit_bytes: int
    seconds: float = 0.0
    statistics: TensorStatistics | None = None
    loss: Loss | None = None


Progress = Callable[[TensorReport], None]


def encode_units(
    prepared: Prepared,
    config: EncoderConfig,
    progress: Progress | None = None,
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    statistics: bool = False,
    checkpoint: Checkpoint | None = None,
    asked: EncoderConfig | None = None,
) -> Iterator[bytes]:
    """The units of a bitstream that holds a model, one after another.

    All tensors are read to plan them, and read again when their units are made: no more at once than work is done on
    (see :class:`Pool`). Units and errors do not depend on who does it. Goals take readings and codings before that.
    With ``checkpoint``, finished units of the same encoding are not coded again, and all tensors are read once more.
    With ``asked``, the options of the caller, an EncodeWarning names options without effect, matrices with a large
    error, and the size of a lossless encoding if that is smaller.

    Raises EncodeError, naming the tensor, for one that cannot be coded as requested.
    """
    model = prepared.model
    read = Reader(model)
    if asked and not prepared.links:
        check_blocks(asked, prepared)
        warn_unmatched(asked, {*model.tensors, *prepared.restored.tensors})
    with Pool(jobs, executor) as pool:

        def sizes(config: EncoderConfig) -> tuple[int, dict[str, int]]:
            found: dict[str, int] = {}

            def note(tensor: TensorReport) -> None:
                found[tensor.name] = tensor.unit_bytes

            return sum(map(len, _units(prepared, config, read, pool, note))), found

        def settle() -> EncoderConfig:
            return allocate(prepared, config, read, pool, sizes)

        resumption = Resumption(checkpoint, prepared, config, read, pool) if checkpoint else None
        settled = resumption.settled(config, settle) if resumption else settle()
        done = yield from _units(prepared, settled, read, pool, progress, statistics, resumption)
        if not asked:
            return
        warn_of_loss(done.losses, asked, prepared)
        if prepared.links:
            return
        warn_unused(asked, prepared, done.units)
        is_lossless = all(settled.for_tensor(name).exact for name in model.tensors)
        if done.least_bytes < SURE * done.nbytes and not is_lossless:
            with suppress(EncodeError):
                warn_if_larger(done.nbytes, sizes(lossless(asked, model.tensors))[0], asked)


class _Done(NamedTuple):
    """A finished bitstream.

    Parameters
    ----------
    units : list of UnitPlan
    nbytes : int
    least_bytes : int
        A lower bound of the bytes of a lossless encoding.
    losses : dict of str to Loss
        Errors of tensors, by name.
    """

    units: list[UnitPlan]
    nbytes: int
    least_bytes: int
    losses: dict[str, Loss]


def _units(
    prepared: Prepared,
    config: EncoderConfig,
    read: Reader,
    pool: Pool,
    progress: Progress | None,
    statistics: bool = False,
    resumption: Resumption | None = None,
) -> Generator[bytes, None, _Done]:
    """The units of a bitstream, with options that have no goals."""
    session = Session()
    model = prepared.model
    layout = plan_units(prepared, config, read, pool)
    plans = layout.units
    record = side_info(model, plans, config)
    ids_of = [plan.all_ids for plan in plans]
    references = pruned.references(prepared, plans, config)
    removed = pruned.container(prepared, plans, references)
    codebooks = any(tensor.codebook for plan in plans for tensor in plan.tensors.values())
    links = prepared.links
    before = [*preamble(prepared, layout, references, record, config, session, codebooks=codebooks, pruning=removed)]
    nbytes = least = sum(map(len, before))  # a lossless encoding has these units, too
    yield from before
    index = {name: k for k, name in enumerate(references)}
    calls = []
    coded = [[*plan.tensors.values()] if known else [] for plan, known in zip(plans, ids_of, strict=True)]
    costs = [sum([tensor.source_bytes for tensor in tensors]) for tensors in coded]
    whole = sum(costs)
    for plan, known, tensors, cost in zip(plans, ids_of, coded, costs, strict=True):
        names = tuple([tensor.name for tensor in tensors])
        own = {name: index[name] for name in known} if index else index
        link = links.of.get(plan.name) if links else None
        arguments, hints = (plan, own, config.max_unit_size, statistics, link), (session, pool.threads(cost, whole))
        calls.append(Call(_encoded, read, names, arguments, cost, hints))
    results = resumption.units(calls, before, statistics) if resumption else pool.run(calls)
    losses: dict[str, Loss] = {}
    for plan, (units, taken, measured, lost, floor) in zip(plans, results, strict=True):
        unit_bytes, seconds = sum(map(len, units)), taken
        nbytes, least = nbytes + unit_bytes, least + floor
        if len(plan.tensors) == 1 and config.for_tensor(plan.name).exact is None:
            # Exact codes without a record have competed, and others take the bytes of the record, too.
            with_code = UNIT_BYTES + len(plan.ids[0]) + RECORD_BYTES + CODE_BYTES + floor
            least += max(min(unit_bytes, with_code) - floor, 0)
        losses |= lost
        if progress:
            for tensor in plan.plans:
                size = prod(tensor.dims), tensor.source_bytes, unit_bytes
                tied = tensor.record.same_as if tensor.record else ""
                lost_of = losses.get(tied or tensor.name)
                progress(TensorReport(tensor.name, *size, seconds, measured.get(tensor.name), lost_of))
                unit_bytes, seconds = 0, 0.0
        yield from units
    return _Done(plans, nbytes, least, losses)


def _encoded(
    arrays: list[Array],
    plan: UnitPlan,
    index: Mapping[str, int],
    max_unit_size: int | None,
    statistics: bool,
    link: Link | None,
    session: Session,
    jobs: int,
) -> tuple[list[bytes], float, dict[str, TensorStatistics], dict[str, Loss], int]:
    """The units of a plan, their time, by tensor statistics, if wanted, and errors, and the least lossless bytes."""
    measured: dict[str, TensorStatistics] = {}
    losses: dict[str, Loss] = {}
    if not arrays:
        return [], 0.0, measured, losses, 0
    started = time.perf_counter()
    try:
        least = sum(map(least_bytes, arrays))
        by_role = dict(zip(plan.tensors, arrays, strict=True))
        arrays.clear()
        wanted = measured if statistics else None
        # Threads share the session: units of tensors leave it as it is, or have one of their own.
        units = encode_unit(plan, by_role, session, index, max_unit_size, wanted, losses, jobs, link)
        return units, time.perf_counter() - started, measured, losses, least
    except EncodeError:
        raise
    except ValueError as error:
        raise EncodeError(f"tensor {plan.name!r} has changed since it was planned: {error}", tensor=plan.name) from None


def encode_unit(
    plan: UnitPlan,
    arrays: dict[str, Array],
    session: Session,
    index: Mapping[str, int],
    max_unit_size: int | None,
    statistics: dict[str, TensorStatistics] | None,
    losses: dict[str, Loss],
    jobs: int = 1,
    link: Link | None = None,
) -> list[bytes]:
    """The compressed data unit of one tensor or block, or its parts, and that of a tensor's other bits.

    ``arrays`` are the tensors by role, each taken out when levels are made of it; ``index`` is the reference list;
    ``statistics`` is filled, if there is one, and ``losses``; ``jobs`` threads code rows of blocks between entry
    points; ``link`` is that of a tensor of an update.
    """
    if not plan.two_units:
        header = _header(plan, index, link.elements if link else {})
        return _units_of(header, plan, arrays, session, index, max_unit_size, statistics, losses, jobs, link)
    session, units = session.snapshot(), []  # in which G comes before H
    for role in plan.tensors:
        header = _factor_header(plan, role, index)
        units += _units_of(header, plan, arrays, session, index, max_unit_size, statistics, losses, jobs, None)
    return units


def _measured(
    plan: TensorPlan,
    array: Array,
    syntax: TensorSyntax | None,
    groups: Groups | None,
    losses: dict[str, Loss],
) -> tuple[Array, Array | None]:
    """Return the contents of the units of a tensor, and add its error to ``losses``."""
    array = as_coded(plan, array)
    unit, bits = contents(plan, array, syntax, groups)
    if found := loss(plan, array, unit, syntax):
        losses[plan.name] = found
    return unit, bits


def _units_of(
    header: NnrCompressedDataUnitHeader,
    plan: UnitPlan,
    arrays: dict[str, Array],
    session: Session,
    index: Mapping[str, int],
    max_unit_size: int | None,
    statistics: dict[str, TensorStatistics] | None,
    losses: dict[str, Loss],
    jobs: int,
    link: Link | None,
) -> list[bytes]:
    """The units of :func:`encode_unit` that have this header, and that of other bits."""
    if header.nnr_compressed_data_unit_payload_type == NNR_PT_RAW_FLOAT:
        if link and link.is_residual:
            raise EncodeError(
                f"tensor {plan.name!r} has no step, without which there are no residuals (7.3.4)", tensor=plan.name
            )
        unit = _measured(plan.tensors["weight"], arrays.pop("weight"), None, None, losses)[0]
        if statistics is not None:
            statistics[plan.tensors["weight"].name] = tensor_statistics(plan.tensors["weight"], header, unit)
        return write_ndu(header, unit, session, max_unit_size=max_unit_size)
    coded = []
    bits: Array | None = None
    for part in parts(header, session):
        tensor = plan.tensors[part.role]
        syntax = tensor_syntax(header, session, part)
        groups = groups_of(header, session, part, Part(tensor, arrays[part.role], syntax), link) if link else None
        unit, bits = _measured(tensor, arrays.pop(part.role), syntax, groups, losses)
        known = Part(tensor, unit, syntax)
        coded.append(refer(header, session, part, known, link) if link else known)
    tools = choose_tools(coded, thorough=coded[0].plan.options.thorough)
    unary = header.cabac_unary_length_minus1 = tools.cabac_unary_length_minus1
    if statistics is not None:
        for done, side in zip(coded, tools.sides, strict=True):
            statistics[done.plan.name] = tensor_statistics(done.plan, header, done.levels, side, bits)
    syntaxes = [done.syntax.with_unary_length(unary) for done in coded]
    parameter = quantization(session)[1]
    values = [Coded(done.levels, done.plan.qp - parameter, side) for done, side in zip(coded, tools.sides, strict=True)]
    if jobs > 1 and header.scan_order:
        with mapping(jobs) as run:
            header, payload = code_tensors(header, syntaxes, values, session, run=run)
    else:
        header, payload = code_tensors(header, syntaxes, values, session)
    units = write_payload(header, payload, session, max_unit_size=max_unit_size)
    if bits is not None:
        other = _single_header(NNR_PT_RAW_FLOAT, bits.shape, plan.all_ids[-1], index, {})
        units += write_ndu(other, bits, session, max_unit_size=max_unit_size)
    return units


@contextmanager
def mapping(jobs: int) -> Iterator[Run]:
    """A function such as ``map`` whose calls several threads do."""
    from concurrent.futures import ThreadPoolExecutor  # with which comes logging

    with ThreadPoolExecutor(jobs) as threads:
        yield threads.map


def _header(plan: UnitPlan, index: Mapping[str, int], linked: Mapping[str, Any]) -> NnrCompressedDataUnitHeader:
    main = next(iter(plan.tensors.values()))
    elements = {**linked, **_elements(main)}
    if plan.compressed_parameter_types:
        return _block_header(plan, index, elements)
    return _single_header(main.payload_type, plan.dims, plan.ids[0], index, elements)


def _factor_header(plan: UnitPlan, role: str, index: Mapping[str, int]) -> NnrCompressedDataUnitHeader:
    """The header of the unit of G or of H (7.3.3, errata J1)."""
    factor = plan.tensors[role]
    rows, rank = plan.tensors["g"].dims
    elements = _elements(factor) | {
        "compressed_parameter_types": NNR_CPT_DC,
        "g_number_of_rows": rows,
        "decomposition_rank": rank,
    }
    return _single_header(factor.payload_type, plan.dims, plan.ids[role == "h"], index, elements)


def _elements(main: TensorPlan) -> dict[str, Any]:
    """What a header says of how a tensor, or the weight of a block, is coded."""
    elements: dict[str, Any] = {}
    if main.data_format not in DEFAULT_FORMATS:
        elements |= {"nnr_decompressed_data_format_present_flag": 1, "nnr_decompressed_data_format": main.data_format}
    if main.payload_type != NNR_PT_RAW_FLOAT:
        elements |= {
            "cabac_unary_length_flag": 1,
            "cabac_unary_length_minus1": main.options.cabac_unary_length_minus1,
            "scan_order": main.options.scan_order,
            "dq_flag": main.dq_flag,
            "first_tensor_dimension_shift": main.shift,
        }
    if main.codebook:
        elements |= {"codebook_present_flag": 1, "codebook": main.codebook}
    return elements


def _block_header(plan: UnitPlan, index: Mapping[str, int], elements: Mapping[str, Any]) -> NnrCompressedDataUnitHeader:
    header = NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=NNR_PT_BLOCK,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(plan.dims),
        compressed_parameter_types=plan.compressed_parameter_types,
        nnr_multiple_topology_elements_present_flag=1,
        **elements,
    )
    if index:
        header.topology_elem_id_index_list = [index[name] for name in plan.ids]
    else:
        header.topology_elem_id_list = list(plan.ids)
    if "g" in plan.tensors:
        header.g_number_of_rows, header.decomposition_rank = plan.tensors["g"].dims
    return header


def _single_header(
    payload_type: int, dims: tuple[int, ...], name: str, index: Mapping[str, int], elements: Mapping[str, Any]
) -> NnrCompressedDataUnitHeader:
    """The header of a unit with one id."""
    reference = {"topology_elem_id_index": index[name]} if index else {"topology_elem_id": name}
    return NnrCompressedDataUnitHeader(
        nnr_compressed_data_unit_payload_type=payload_type,
        input_parameters_present_flag=1,
        tensor_dimensions_flag=1,
        tensor_dimensions=list(dims),
        **reference,
        **elements,
    )
