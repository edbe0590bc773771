"""Bins and heads of payloads: the plain decoder reads the headers of real bitstreams like the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.bitstream.payload import PayloadTensor, code_payload, tensor_syntax
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.cabac_ext.kernel import PayloadTracer
from nnr_codec.constants import NNR_PT_RAW_FLOAT
from nnr_codec.decoder.bins import StopTracing, TensorBin, heads, trace_bins
from nnr_codec.decoder.decode import BitstreamParser
from nnr_codec.decoder.group import is_first_edition
from nnr_codec.decoder.parents import node_key
from nnr_codec.decoder.task import NduTask

from ..builder import Bitstream, ndu
from ..cabac.pairs import BASE, BYPASS, TERMINATE
from ..vectors.few import for_each

ROOT = Path(__file__).resolve().parents[2] / "bitstream_vectors"
STREAMS = {
    str(path.relative_to(ROOT)): path
    for path in sorted(ROOT.rglob("*.nn[rc]"))
    if path.parts[-3] in ("block", "cabac", "quant", "tensor") or (path.name == "00.nnr" and path.stat().st_size < 4000)
}


def tasks(data: Path | bytes) -> Iterator[tuple[NduTask, bool]]:
    """Return the units whose payloads have bins, and the reading of profile 0."""
    parser = BitstreamParser(UnitReader(data))
    groups = list(parser.groups())
    first_edition = parser.profile == 0 and is_first_edition(groups)
    for group in groups:
        for task in group.tasks:
            if task.header.nnr_compressed_data_unit_payload_type != NNR_PT_RAW_FLOAT:
                yield task, first_edition


def bins_of(task: NduTask, first_edition: bool = False) -> list[TensorBin]:
    found: list[TensorBin] = []
    trace_bins(task, found.append, first_edition)
    return found


@for_each(STREAMS, "slow")
def test_bins_equal_the_kernel(path: Path) -> None:
    for task, first_edition in tasks(path):
        found = bins_of(task, first_edition)
        tracer = PayloadTracer(task.payload, first_edition=first_edition)
        syntaxes = [tensor_syntax(task.header, task.session, p, first_edition=first_edition) for p in task.parts]
        code_payload(tracer, task.header, task.session, [PayloadTensor(syntax) for syntax in syntaxes])
        expected = tracer.bins()
        assert [one.number for one in found] == list(range(len(expected)))
        context = [
            BASE[one.bin.element] + one.bin.ctx_inc
            if one.bin.ctx_inc >= 0
            else TERMINATE
            if one.bin.element == "terminating_one_bit"
            else BYPASS
            for one in found
        ]
        rest = np.array([one.bin[2:] for one in found], np.int32)
        assert np.array_equal(np.column_stack([context, rest]), expected)


@for_each({name: STREAMS[name] for name in STREAMS if name.startswith("block") or "rowskip" in name}, "slow")
def test_heads_are_what_the_bins_say(path: Path) -> None:
    for task, first_edition in tasks(path):
        found = bins_of(task, first_edition)
        for part, elements in heads(task, first_edition):
            for element in elements:
                bits = [one.bin.bin for one in found if one.part is part and one.bin.element == element.name]
                if element.name == "row_skip_list":
                    assert element.value.tolist() == bits
                else:
                    value = int("".join(map(str, bits)), 2)
                    signed = value - (bits[0] << len(bits)) if element.name == "qp_value" else value
                    assert element.value == signed


@pytest.mark.parametrize(
    "folder",
    [folder for folder in sorted(ROOT.glob("interop/*/*")) if (folder / "01.nnr").exists()],
    ids=lambda f: f.name,
)
def test_bins_of_updates(folder: Path) -> None:
    """With the state of earlier bitstreams, the bins belong to the decoded levels."""
    decoder = nnr.UpdateDecoder()
    for path in sorted(folder.glob("*.nnr")):
        traced: list[tuple[NduTask, list[TensorBin]]] = []
        for task, first_edition in tasks(path):
            found: list[TensorBin] = []
            trace_bins(task, found.append, first_edition, decoder.state)
            traced.append((task, found))
        decoder.decode(path)
        for task, found in traced:
            node = decoder.state.node(node_key(task.header) or (-1, -1))
            assert found[-1].bin.element in ("terminating_one_bit", "nesting_zero_bit")
            for part, levels in zip(task.parts, node.levels if node else (), strict=False):
                flags = (one for one in found if one.part is part and one.bin.element == "sig_flag")
                significant = {one.parameter for one in flags if one.bin.bin}
                assert significant == set(zip(*map(np.ndarray.tolist, np.nonzero(levels)), strict=True))


def test_each_parameter_that_is_coded_begins_with_sig_flag() -> None:
    values = np.zeros((20, 3, 7), np.int32)
    values[3], values[19] = 2, -1
    for options in ({"row_skipping": False}, {"row_skipping": True}, {"row_skipping": True, "scan_order": 1}):
        ((task, _),) = tasks(nnr.encode({"w": values}, **options))
        found = bins_of(task)
        begun = [one.parameter for one in found if one.bin.element == "sig_flag"]
        rows = [3, 19] if options["row_skipping"] else range(20)
        assert sorted(begun) == [(y, *rest) for y in rows for rest in np.ndindex(3, 7)]
        significant = {one.parameter for one in found if one.bin.element == "sig_flag" and one.bin.bin}
        assert significant == set(zip(*map(np.ndarray.tolist, np.nonzero(values)), strict=True))


def test_a_trace_can_be_ended() -> None:
    ((task, _),) = tasks(nnr.encode({"w": np.ones((500, 500), np.int32)}))
    seen: list[TensorBin] = []

    def few(one: TensorBin) -> None:
        seen.append(one)
        if len(seen) == 10:
            raise StopTracing

    trace_bins(task, few)
    assert len(seen) == 10


def test_errors_name_unit_and_bit() -> None:
    data = bytearray(nnr.encode({"w": np.arange(600, dtype=np.float32).reshape(20, 30)}))
    data[-9:-4] = bytes(5)
    ((task, _),) = tasks(bytes(data))
    with pytest.raises(nnr.PayloadError) as raised:
        bins_of(task)
    assert raised.value.unit == "unit 2 (NNR_NDU 'w')"
    assert 8 * task.unit.payload_offset < raised.value.bit <= 8 * task.nbytes


def test_what_has_no_bins() -> None:
    reader = BitstreamParser(UnitReader(Bitstream().str_().mps().raw(ndu("w", [2, 3], kind=2), np.ones(6)).data))
    ((task,),) = (group.tasks for group in reader.groups())
    assert heads(task) == []
    with pytest.raises(nnr.UnsupportedError, match="an NNR_PT_RAW_FLOAT payload has no bins"):
        bins_of(task)
