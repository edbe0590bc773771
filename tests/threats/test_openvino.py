"""T35: the XML of an OpenVINO IR, and the ranges that it declares."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError
from nnr_codec.formats import openvino
from nnr_codec.formats.findings import MOST
from nnr_codec.formats.openvino import ir as reader
from nnr_codec.formats.openvino import layers
from nnr_codec.formats.openvino.ir import read_constants
from nnr_codec.formats.openvino.shapes import with_shapes
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..formats.irs import around, const, ir, put
from .support import memory

HEAD, TAIL = ir().split(b"\n\t</layers>")
LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (k, b"&l%d;" % (k - 1) * 10) for k in range(1, 10))


def read(text: bytes) -> None:
    read_constants(text, Limits())


@pytest.mark.parametrize(
    "doctype",
    [
        b"<!DOCTYPE net>",
        b'<!DOCTYPE net [<!ENTITY l0 "ha">' + LAUGHS + b"]>",
        b'<!DOCTYPE net [<!ENTITY l9 "' + 50_000 * b"ha" + b'">]>',
        b'<!DOCTYPE net [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE net SYSTEM "http://192.0.2.1/x.dtd">',
        b'<!DOCTYPE net [<!ENTITY % p SYSTEM "file:///etc/passwd"> %p;]>',
        b'<!DOCTYPE net [<!ATTLIST net version CDATA "11">]>',
    ],
    ids=["empty", "laughs", "quadratic", "file", "network", "parameter", "attributes"],
)
def test_t35_document_types(doctype: bytes, tmp_path: Path) -> None:
    text = HEAD.replace(b"?>", b"?>" + doctype) + b"<a>" + b"&l9;" * 100 * (b" l9 " in doctype) + b"</a></layers></net>"
    with memory() as used, pytest.raises(FormatError, match="has a document type"):
        read(text)
    assert used.peak < 1 << 20
    with pytest.raises(FormatError, match="not a model of a supported format"):
        formats.load(put(tmp_path, text, b""))


def test_t35_other_encodings() -> None:
    with pytest.raises(FormatError, match="not UTF-8"):
        read((HEAD + b"</layers></net>").decode().encode("utf-16"))


def test_t35_depth() -> None:
    text = HEAD + b"<a>" * 1_000_000
    with memory() as used, pytest.raises(FormatError, match="nested deeper than 200"):
        read(text)
    assert used.peak < 1 << 20


def test_t35_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_ELEMENTS", 10_000)
    with pytest.raises(FormatError, match="more than 10,000 elements"):
        read(HEAD + b"<a/>" * 10_000 + b"</layers></net>")


@pytest.mark.parametrize(
    "tag",
    [
        b"<a " + b"".join(b'b%d="" ' % k for k in range(2_000_000)) + b"/>",
        b'<a b="' + b"x" * (16 << 20) + b'"/>',
        b"<!--" + b"x" * (16 << 20) + b"-->",
    ],
    ids=["attributes", "value", "comment"],
)
def test_t35_long_tags(tag: bytes) -> None:
    text = HEAD + tag + b"</layers></net>"
    with memory() as used, pytest.raises(FormatError, match="a tag or comment has more than 1,048,576 bytes"):
        read(text)
    assert used.peak < 8 << 20


def test_a_tag_that_is_just_not_too_long() -> None:
    """All versions of expat read it, including versions (from 2.6 on) that wait for more text."""
    for lead in (0, 34_000):
        read(HEAD + b" " * lead + b'<a b="' + b"x" * 1_000_000 + b'"/></layers></net>')


def test_t35_names_of_elements() -> None:
    """Each is kept as long as the text is read."""
    text = HEAD + b"".join(b"<a%d/>" % k for k in range(100_000)) + b"</layers></net>"
    with memory() as used, pytest.raises(FormatError, match="more than 65,536 different names"):
        read(text)
    assert used.peak < 32 << 20


def test_t35_long_names() -> None:
    with pytest.raises(LimitError, match="max_name_bytes"):
        read(ir(const("a" * 4097, 0, 4)))


def test_t35_names_that_are_repeated() -> None:
    """A layer's name is part of the name of each constant in its body."""
    text = ir(around("a" * 4000, ("body", [const("", 4 * k, 4) for k in range(2000)])))
    with memory() as used, pytest.raises(LimitError, match="bytes of all names"):
        read_constants(text, Limits(max_topology_bytes=1 << 20))
    assert used.peak < 2 << 20


@pytest.mark.parametrize(
    ("offset", "size"), [("18446744073709551615", 8), (0, "18446744073709551616"), (-8, 8), (0, "9" * 100_000)]
)
def test_t35_numbers(offset: object, size: object) -> None:
    with pytest.raises(FormatError, match="is not a number of bytes"):
        read(ir(const("w", str(offset), str(size))))


@pytest.mark.parametrize("shape", [(1 << 62, 2), (3,), (2, 0)])
def test_t35_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(FormatError, match="has 8 bytes; f32 of shape"):
        read(ir(const("w", 0, 8, "f32", ", ".join(f"{extent % 10**18}" for extent in shape))))


def test_t35_ranges_within_ranges() -> None:
    """Each byte would be read, and coded, for each of them."""
    layers = [const(f"w{k}", k, 1 << 20, "u8", (1 << 20,)) for k in range(1000)]
    with pytest.raises(FormatError, match="partially overlap at byte 1"):
        read(ir(*layers))


@pytest.mark.parametrize("offset", [1, 1 << 59])
def test_t35_ranges_outside_of_the_file(offset: int, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"the \.bin has 8 bytes; the constant 'w' ends at"):
        formats.load(put(tmp_path, ir(const("w", offset, 8, "f32", (2,))), bytes(8)))


def test_t35_a_pipe_beside_the_text(tmp_path: Path) -> None:
    path = put(tmp_path, ir(const("w", 0, 8, "f32", (2,))), b"")
    path.with_suffix(".bin").unlink()
    os.mkfifo(path.with_suffix(".bin"))
    with pytest.raises(FormatError, match="not a regular file"):
        formats.load(path)


def test_t36_a_link_beside_the_text(tmp_path: Path) -> None:
    """It is rejected, except in a cache of models, where both files are links into one folder."""
    path = put(tmp_path / "model", ir(const("w", 0, 8, "f32", (2,))), b"")
    (tmp_path / "elsewhere").write_bytes(bytes(8))
    path.with_suffix(".bin").unlink()
    path.with_suffix(".bin").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="a symbolic link that leaves the model's folder"):
        formats.load(path)
    path.rename(tmp_path / "text")
    path.symlink_to(tmp_path / "text")
    assert formats.load(path)["w"].tolist() == [0, 0]


@pytest.mark.parametrize("offset", [0, 1 << 27])
def test_t36_a_file_of_zeros(offset: int, tmp_path: Path) -> None:
    """A bitstream of a few bytes would fill the disk."""
    text = ir(const("w", offset, 8, "f32", (2,)))
    model = Model({"w": np.zeros(2, np.float32)}, Topology("", text), metadata={"openvino:size": str((1 << 27) + 8)})
    with pytest.raises(FormatError, match="bytes that no constant uses"):
        openvino.save(model, tmp_path / "m.xml", overwrite=False)


@pytest.mark.parametrize("size", ["-1", "9" * 5000, "1e9", ""])
def test_t36_sizes_that_are_none(size: str, tmp_path: Path) -> None:
    model = Model({}, Topology("", ir()), metadata={"openvino:size": size})
    with pytest.raises(FormatError, match="the metadata has the invalid size"):
        openvino.save(model, tmp_path / "m.xml", overwrite=False)


def test_t36_more_than_fits_a_place(tmp_path: Path) -> None:
    text = ir(const("w", 0, 8, "f32", (2,)), const("v", 8, 8, "f32", (2,)))
    model = Model({"w": np.zeros(4, np.float32), "v": np.ones(2, np.float32)}, Topology("", text))
    with pytest.raises(FormatError, match=r"'w' has shape \[4\]"):
        openvino.save(model, tmp_path / "m.xml", overwrite=False)


def test_t38_layers_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object for each takes more memory than its few bytes."""
    monkeypatch.setattr(layers, "MOST", 10_000)
    text = ir("<layer><input><port><dim/></port></input></layer>" * 25_000)
    with memory() as used:
        assert formats.wiring(Topology("", text)).blocks == ()
        assert formats.channels(Topology("", text)) == ()
    assert used.peak < 8 << 20


def test_t38_ports_and_dimensions_without_end() -> None:
    """Each dimension of the output would be compared with each input's, so shapes of this size are unchanged."""
    port = "<port id='{}'>" + "<dim>2</dim>" * 2 + "</port>"
    weight = const("w", 0, 16, "f32", (2, 2)).replace('<port id="0" precision="FP32"/>', port.format(0))
    operand, output = "".join(map(port.format, range(1000))), "<dim>2</dim>" * 1000
    add = f"<layer id='1' type='Add' version='opset1'><input>{operand}</input><output><port id='1000'>{output}</port>"
    text = ir(weight, f"{add}</output></layer>").replace(
        b"<edges/>", b"<edges><edge from-layer='0' from-port='0' to-layer='1' to-port='0'/></edges>"
    )
    edited = with_shapes(text, read_constants(text, Limits()), {"w": (1, 2)})
    assert text.count(b"<dim>1</dim>") == 0
    assert edited.count(b"<dim>1</dim>") == 2  # of the weight and of the operand


def test_t35_what_stands_before_the_layers() -> None:
    """The text is not an IR, so it is not rejected as one: a bitstream with it as topology can be decoded."""
    layer = const("w", 0, 4, "f32", (1,) * (Limits().max_dims + 1))
    text = f"<net version='11'><a><layers>{layer}</layers></a></net>".encode()
    assert not openvino.owns(Topology("", text))


def test_t38_bodies_in_bodies() -> None:
    """Their layers are checked without recursion, at the greatest depth."""
    layer = "<layer id='0' type='Sigmoid' version='opset1'>"
    depth = (reader.MAX_DEPTH - 2) // 3
    text = f"<net version='11'><layers>{layer}" + f"<body><layers>{layer}" * (depth - 1)
    text += "</layer></layers></body>" * (depth - 1) + "</layer></layers></net>"
    report = nnr.verify_model(text.encode())
    assert [found.rule for found in report.violations] == ["ir-input-count", "ir-output-count"] * depth


def test_t38_findings_without_end() -> None:
    layers_ = "<layer id='0' type='Sigmoid' version='opset1'/>" * 10_000
    report = nnr.verify_model(ir(layers_))
    assert len(report.violations) == 3 * MOST
    assert [found.message for found in report.notes if "more" in found.message] == [
        f"{10_000 - less - MOST} more findings are left out" for less in (1, 0, 0)
    ]


def test_t38_ranks_without_end() -> None:
    """The volume of a shape of so many dimensions would be a number of a million digits."""
    shape = "<dim>999999999999999999</dim>" * 60_000
    reshape = (
        "<layer id='1' type='Squeeze' version='opset1'>"
        f"<input><port id='0'>{shape}</port></input><output><port id='1'>{shape[:-6]}</dim></port></output></layer>"
    )
    report = nnr.verify_model(ir(reshape))
    assert [found.rule for found in report.violations] == ["ir-input-edge"]


@pytest.mark.parametrize("number", ["9" * 5000, "1e", "0x1", "\u0661", ""])
def test_t38_numbers_of_attributes(number: str) -> None:
    for type_, name in (("Concat", "axis"), ("Elu", "alpha")):
        layer = (
            f"<layer id='1' type='{type_}' version='opset1'><data {name}='{number}'/>"
            "<input><port id='0'/></input><output><port id='1'/></output></layer>"
        )
        rules = [found.rule for found in nnr.verify_model(ir(layer)).violations]
        assert rules == ["ir-input-edge", "ir-attribute-value"]
