"""Random NNEF models through containers and bitstreams: the files are the same and agree with the graph."""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.config import PRESETS
from nnr_codec.errors import EncodeError, FormatError
from nnr_codec.formats.nnef.labels import label_paths

from ..shared import examples
from .support import head, regular, tar_bytes, tree, write_folder

Files = dict[str, bytes]

_WIDTHS = st.one_of(st.sampled_from([1, 7, 8, 9, 16, 31, 32, 33, 63, 64]), st.integers(1, 64))
_ITEMS = st.one_of(
    st.tuples(st.just(0), st.sampled_from([16, 32, 64])),
    st.tuples(st.sampled_from([1, 2, 3, 4, 0x10, 0x11]), _WIDTHS),
    st.tuples(st.just(5), st.sampled_from([1, 8])),
)
_TYPES = {0: "scalar", 2: "scalar", 3: "scalar", 0x10: "scalar", 0x11: "scalar", 5: "logical"}
_NAMES = st.text("abzAZ09_-.", min_size=1, max_size=6) | st.sampled_from(["aux", "CON.x", "a.dat", "graph.nnef", "w"])
_LABELS = st.builds(
    lambda slash, names, between: slash + between.join(names),
    st.sampled_from(["", "", "/"]),
    st.lists(_NAMES, min_size=1, max_size=3),
    st.sampled_from(["/", "\\"]),
)
_CONTAINERS = ["m.nnef", "m.tar", "m.tgz"]


@st.composite
def models(draw: st.DrawFn, *, usual: bool = False) -> Files:
    """Draw the files of a model; only with usual headers and numbers if they are to be changed."""
    labels = draw(st.lists(_LABELS, min_size=1, max_size=5, unique_by=str.casefold))
    for label in labels[:1]:
        if not usual and label != label.swapcase() and draw(st.booleans()):
            labels.append(label.swapcase())
    try:
        paths = label_paths(labels)
    except FormatError:
        assume(False)
    lines, files, entries = [], {}, []
    known: dict[str, tuple[int, int, tuple[int, ...], bytes]] = {}
    for k, label in enumerate(labels):
        item_type, bits = draw(_ITEMS)
        shape = tuple(draw(st.lists(st.integers(1, 4), max_size=8)))
        assume(math.prod(shape) <= 512)
        size = math.prod(shape) * bits
        stream = np.frombuffer(draw(st.binary(min_size=(size + 7) // 8, max_size=(size + 7) // 8)), np.uint8)
        if item_type == 0 and usual:
            numbers = np.random.default_rng(draw(st.integers(0, 99))).normal(size=math.prod(shape))
            stream = numbers.astype(f"<f{bits // 8}").view(np.uint8)
        items = np.packbits(np.unpackbits(stream)[:size]).tobytes()
        item_type, bits, shape, items = known.setdefault(label.casefold(), (item_type, bits, shape, items))
        header = head(item_type, bits, shape)
        if not usual and draw(st.booleans()):
            # Legacy integers are signed by their parameter, which is the same for all spellings.
            rest = draw(st.binary(max_size=72))
            unused = draw(st.binary(max_size=4 * (8 - len(shape))))
            at = 12 + 4 * len(shape)
            header = header[:at] + unused + header[at + len(unused) : 56] + rest.ljust(72, b"\0")
        files[paths[label]] = header + items
        text = label.replace("\\", "\\\\")
        data_type = _TYPES.get(item_type, "integer")
        lines.append(f"  v{k} = variable<{data_type}>(shape = {list(shape)}, label = '{text}');")
        if draw(st.booleans()):
            entries.append(f"'v{k}': linear_quantize(min = 0.0, max = 1.0, bits = 8);  # {draw(_NAMES)}\r\n")
    body = "\n".join(lines)
    files["graph.nnef"] = (
        f"version 1.0;\ngraph g(x) -> (y)\n{{\n  x = external(shape = [1]);\n{body}\n  y = copy(x); # ü\n}}\n".encode()
    )
    if entries or draw(st.booleans()):
        files["graph.quant"] = "".join(entries).encode()
    return files


def packed(folder: Path, name: str, files: Files) -> Path:
    """Write the files as a folder or an archive."""
    if name.endswith(".nnef"):
        return write_folder(folder / name, files)
    data = tar_bytes(regular(files))
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".tgz") else data)
    return folder / name


def unpacked(source: Path | io.BytesIO) -> Files:
    """Return the files of a folder, or of an archive as tarfile reads it."""
    if isinstance(source, Path) and source.is_dir():
        return tree(source)
    with tarfile.open(fileobj=io.BytesIO(source.read_bytes()) if isinstance(source, Path) else source) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(models(), st.sampled_from(_CONTAINERS), st.sampled_from(_CONTAINERS))
def test_any_model_comes_back_byte_for_byte(files: Files, one: str, other: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = packed(folder, one, files)
        assert nnr.verify_model(source).violations == []
        nnr.save(nnr.load(source), folder / f"saved.{other}")
        assert unpacked(folder / f"saved.{other}") == files
        nnr.encode_file(source, folder / "m.nnr", exact=True)
        nnr.decode_file(folder / "m.nnr", folder / f"decoded.{other}")
        assert unpacked(folder / f"decoded.{other}") == files
        stream = io.BytesIO()
        nnr.save(nnr.decode(folder / "m.nnr"), stream)
        assert unpacked(io.BytesIO(stream.getvalue())) == files


_GOALS = st.sampled_from([{}, {"quality": 30}, {"snr": 40.0}, {"max_error": 0.01}, {"target_ratio": 0.9}])
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "qp": st.integers(-60, 10),
        "effort": st.sampled_from([1, 5, 9]),
        "dependent_quantization": st.booleans(),
        "scan_order": st.integers(0, 4),
        "codebook": st.integers(0, 16),
        "block": st.booleans(),
        "fold_batchnorm": st.booleans(),
        "local_scaling": st.booleans(),
        "indexed_references": st.booleans(),
        "max_unit_size": st.sampled_from([200, 1000]),
    },
)
_PRESETS = st.sampled_from([None, None, *PRESETS])


@pytest.mark.filterwarnings("ignore::nnr_codec.formats.FormatWarning")
@settings(max_examples=examples(50), suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(models(usual=True), _OPTIONS, _GOALS, _PRESETS)
def test_any_options_keep_types_and_shapes(
    files: Files, options: dict[str, Any], goal: dict[str, Any], preset: str | None
) -> None:
    model = nnr.load(tar_bytes(regular(files)))
    try:
        data = nnr.encode(model, nnr.EncoderConfig.preset(preset) if preset else None, **options, **goal)
    except EncodeError:
        assume(False)  # options that exclude each other, or an impossible size
    decoded = nnr.decode(data)
    for name, array in model.tensors.items():
        assert (decoded[name].dtype, decoded[name].shape) == (array.dtype, array.shape)
    stream = io.BytesIO()
    nnr.save(decoded, stream)
    out = unpacked(io.BytesIO(stream.getvalue()))
    assert {path: content[:128] for path, content in out.items()} == {path: file[:128] for path, file in files.items()}
