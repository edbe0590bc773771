"""Headers of tensor files that nnr_codec would not write: they are restored byte for byte if they still apply."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.config import PRESETS
from nnr_codec.errors import EncodeError, FormatError
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Array, Model, Topology

from .support import dat, graph_text, head, nnef_model, tree, write_folder
from .test_tensorfile import vendor_file


def document(*variables: tuple[str, str, str]) -> bytes:
    """Return a graph of variables with data type, shape and label."""
    lines = [
        f"v{index} = variable<{data_type}>(shape = {shape}, label = '{label}');"
        for index, (data_type, shape, label) in enumerate(variables)
    ]
    return "\n".join(["version 1.0;", "graph g(x) -> (y)", "{", "x = external(shape = [1]);", *lines, "}"]).encode()


QUANT = b"".join(
    b'"%s": zero_point_linear_quantize(zero_point = 3, scale = 0.5, bits = 4, signed = false, symmetric = false);\n'
    % name
    for name in (b"v0", b"v3")
)

#: Files of integers and booleans, which every preset keeps: item types, widths, parameters, unused and reserved bytes.
FILES = {
    "graph.nnef": document(
        ("scalar", "[5]", "quantized"),
        ("scalar", "[2, 2]", "linear"),
        ("scalar", "[3]", "logarithmic"),
        ("scalar", "[2]", "usual"),
        ("integer", "[1, 3]", "legacy"),
        ("integer", "[]", "wide"),
        ("integer", "[4]", "unsigned"),
        ("logical", "[4]", "bytes"),
        ("logical", "[4]", "values"),
        ("logical", "[4]", "bits"),
    ),
    "graph.quant": QUANT,
    "quantized.dat": head(2, 4, (5,)) + b"\x12\x3f\x50",
    "linear.dat": head(0x10, 8, (2, 2), parameters=np.array([-1, 1], "<f4").tobytes()) + b"\x00\x7f\x80\xff",
    "logarithmic.dat": head(0x11, 5, (3,), parameters=np.array([-8, 8], "<f4").tobytes()) + b"\xff\xfe",
    "usual.dat": head(3, 8, (2,)) + b"\x80\x7f",
    "legacy.dat": head(1, 16, (1, 3), parameters=b"\1") + b"\xff\xff\0\x80\xff\x7f",
    "wide.dat": head(4, 57, ()) + b"\x80\0\0\0\0\0\0\x80",
    "unsigned.dat": head(1, 64, (4,))[:84] + bytes(range(44)) + b"\xff" * 32,
    "bytes.dat": head(5, 8, (4,)) + b"\1\0\0\1",
    "values.dat": head(5, 8, (4,)) + b"\xff\0\2\1",
    "bits.dat": head(5, 1, (4,))[:40] + b"\1\2\3\4" + head(5, 1, (4,))[44:] + b"\x90",
}
#: Floats, of which only lossless presets keep every bit.
FLOATS = {
    "graph.nnef": document(("scalar", "[3, 7]", "w"), ("scalar", "[1, 3]", "b")),
    "w.dat": head(0, 32, (3, 7))[:120] + b"reserved" + (np.arange(21, dtype="<f4") / 10).tobytes(),
    "b.dat": head(0, 64, (1, 3))[:20] + b"\x07" + head(0, 64, (1, 3))[21:] + np.array([0.1, -0.0, np.nan]).tobytes(),
}


def test_what_the_metadata_holds(tmp_path: Path) -> None:
    model = nnr.load(write_folder(tmp_path / "m", FILES))
    assert model.metadata == {
        f"nnef:{name}": FILES[f"{name}.dat"][12 + 4 * model[name].ndim : 128].rstrip(b"\0").hex()
        for name in model
        if name != "usual"
    }
    assert {name: str(array.dtype) for name, array in model.tensors.items()} == {
        "quantized": "uint8",
        "linear": "uint8",
        "logarithmic": "uint8",
        "usual": "int8",
        "legacy": "int16",
        "wide": "int64",
        "unsigned": "uint64",
        "bytes": "bool",
        "values": "uint8",
        "bits": "bool",
    }
    assert model["quantized"].tolist() == [1, 2, 3, 15, 5]
    assert model["logarithmic"].tolist() == [31, 31, 31]
    assert model["wide"] == -(1 << 56) + 1


@pytest.mark.parametrize("name", ["m.nnef", "m.tar", "m.tgz"])
@pytest.mark.parametrize("files", [FILES, FLOATS], ids=["integers", "floats"])
def test_saving_writes_the_same_files(files: dict[str, bytes], name: str, tmp_path: Path) -> None:
    nnr.save(nnr.load(write_folder(tmp_path / "in", files)), tmp_path / name)
    nnr.save(nnr.load(tmp_path / name), tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == files


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_bitstreams_keep_integers_in_every_preset(preset: str | None, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", FILES)
    data = nnr.encode(folder, config=nnr.EncoderConfig.preset(preset) if preset else None)
    nnr.save(nnr.decode(data), tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == FILES


def test_bitstreams_keep_headers_of_floats(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "in", FLOATS)
    nnr.save(nnr.decode(nnr.encode(folder, exact=True)), tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == FLOATS
    nnr.save(nnr.decode(nnr.encode(folder, qp=-20)), tmp_path / "lossy.nnef")
    lossy = tree(tmp_path / "lossy.nnef")
    assert {name: data[:128] for name, data in lossy.items()} == {name: data[:128] for name, data in FLOATS.items()}
    assert lossy["w.dat"] != FLOATS["w.dat"]


def test_a_tensor_of_another_type_has_the_usual_header(tmp_path: Path) -> None:
    data = nnr.encode(write_folder(tmp_path / "in", FLOATS), exact=True)
    model = nnr.decode(data, dtype="float16")
    nnr.save(model, tmp_path / "out.nnef")
    assert (tmp_path / "out.nnef" / "w.dat").read_bytes() == dat(model["w"]) == dat(model["w"].astype("f2"))
    assert model.metadata.keys() == {"nnef:w", "nnef:b"}


def test_a_model_without_side_information_has_the_usual_headers_only(tmp_path: Path) -> None:
    files = {"graph.nnef": document(("scalar", "[3, 7]", "w")), "w.dat": FLOATS["w.dat"]}
    with pytest.raises(EncodeError, match="the model has metadata, which only side information can represent"):
        nnr.encode(write_folder(tmp_path / "in", files), side_info=False)
    usual = {"graph.nnef": document(("integer", "[2]", "w")), "graph.quant": b"# empty", "w.dat": dat(np.ones(2, "i1"))}
    data = nnr.encode(write_folder(tmp_path / "usual", usual), side_info=False)
    nnr.save(nnr.decode(data), tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == usual


def test_other_formats_carry_the_headers(tmp_path: Path) -> None:
    """Headers of numbers are excepted, because other formats store these as floats."""
    model = nnr.load(write_folder(tmp_path / "in", FILES))
    nnr.save(Model(model.tensors, metadata=model.metadata), tmp_path / "m.safetensors")
    between = nnr.decode(nnr.encode(tmp_path / "m.safetensors", exact=True))
    nnr.save(Model(between.tensors, model.topology, metadata=between.metadata), tmp_path / "out.nnef")
    files = dict(FILES)
    files |= {f"{name}.dat": dat(np.array(values, np.float32)) for name, values in NUMBERS.items()}
    assert tree(tmp_path / "out.nnef") == files


#: Values of the tensors of types 0x10 and 0x11 above.
NUMBERS = {"linear": [[-1, 127 / 127.5 - 1], [128 / 127.5 - 1, 1]], "logarithmic": [-8, -8, -8]}


@pytest.mark.parametrize("name", ["out.safetensors", "out.npz", "out.h5", "stream"])
def test_other_formats_hold_the_numbers_of_quantized_items(name: str, tmp_path: Path) -> None:
    data = nnr.encode(write_folder(tmp_path / "in", FILES))
    model = nnr.decode(data)
    assert model["linear"].dtype == np.uint8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        if name == "stream":
            stream = io.BytesIO()
            nnr.save(model, stream, format="npz")
            found = nnr.load(stream.getvalue())
        else:
            pytest.importorskip("h5py") if name.endswith("h5") else None
            nnr.save(model, tmp_path / name)
            found = nnr.load(tmp_path / name)
    for tensor, values in NUMBERS.items():
        assert found[tensor].dtype == np.float32
        assert found[tensor].tolist() == np.array(values, np.float32).tolist()
        assert f"nnef:{tensor}" not in found.metadata
    assert found["quantized"].tolist() == model["quantized"].tolist()


def test_dequantized_models_keep_their_graph(tmp_path: Path) -> None:
    model = nnr.dequantized(write_folder(tmp_path / "in", FILES))
    assert model.topology == Topology("nnef", FILES["graph.nnef"], QUANT)
    assert model["linear"].tolist() == np.array(NUMBERS["linear"], np.float32).tolist()
    assert model["quantized"].dtype == np.uint8


def test_metadata_that_is_no_header_is_kept(tmp_path: Path) -> None:
    metadata = {"nnef:w": "text", "nnef:v": head(0x10, 8, (2,))[16:].hex(), "nnef:u": "00"}
    tensors = {name: np.ones(2, np.float32) for name in "wv"}
    nnr.save(Model(tensors, metadata=metadata), tmp_path / "m.safetensors")
    found = nnr.load(tmp_path / "m.safetensors")
    assert found.metadata == metadata
    assert found["v"].tolist() == [1, 1]


def test_data_of_vendors(tmp_path: Path) -> None:
    data = bytes(range(1, 19)) * 48
    files = {
        "graph.nnef": document(("scalar", "[16, 96]", "w"), ("scalar", "[2]", "v")),
        "w.dat": vendor_file((16, 96), data),
        "v.dat": dat(np.zeros(2, np.float32)),
    }
    folder = write_folder(tmp_path / "in.nnef", files)
    for exact in (False, True):
        nnr.save(nnr.decode(nnr.encode(folder, exact=exact)), tmp_path / f"{exact}.nnef")
        assert tree(tmp_path / f"{exact}.nnef") == files
    model = nnr.decode(nnr.encode(folder))
    assert (model["w"].dtype, model["w"].shape) == (np.uint8, (16, 96))
    with pytest.warns(FormatWarning, match="tensors of item types of vendors are written as bytes: 'w'"):
        nnr.save(Model(model.tensors, metadata=model.metadata), tmp_path / "m.safetensors")
    between = nnr.load(tmp_path / "m.safetensors")
    nnr.save(Model(between.tensors, model.topology, metadata=between.metadata), tmp_path / "back.nnef")
    assert tree(tmp_path / "back.nnef") == files
    report = nnr.verify_model(folder)
    assert [(note.rule, note.file) for note in report.notes] == [("vendor-data", "w.dat")]
    assert {found.rule for found in [*report.violations, *report.warnings]} == {"result-assigned"}  # y


def test_each_spelling_has_its_header(tmp_path: Path) -> None:
    files = {
        "graph.nnef": document(("logical", "[4]", "w"), ("logical", "[4]", "W")),
        "w.dat": head(5, 1, (4,)) + b"\x90",
        "W.dat": FILES["bytes.dat"],
    }
    nnr.save(nnr.decode(nnr.encode(write_folder(tmp_path / "in", files))), tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == files
    # A variable without a file gets the file of the others.
    del files["w.dat"]
    model = nnr.load(write_folder(tmp_path / "one", {**files, "W.dat": FILES["values.dat"]}))
    nnr.save(model, tmp_path / "both.nnef")
    assert tree(tmp_path / "both.nnef") == {**files, "w.dat": FILES["values.dat"], "W.dat": FILES["values.dat"]}


@pytest.mark.parametrize(
    ("quantization", "untold"),
    [
        (None, ["usual", "four", "tied"]),
        (b"", ["usual", "four", "tied"]),
        (b"'v0': linear_quantize(min = 0.0, max = 1.0, bits = 8);", ["four", "tied"]),
        # One of the variables that share the tensor is sufficient.
        (b"'v4': f(); 'v1': f(); 'x': f();", ["usual"]),
    ],
)
def test_quantized_tensors_without_parameters(quantization: bytes | None, untold: list[str], tmp_path: Path) -> None:
    scalars = [("scalar", "[2]", label) for label in ("usual", "four", "legacy", "tied", "TIED", "float")]
    files = {
        "graph.nnef": document(*scalars, ("integer", "[2]", "integer")),
        "usual.dat": FILES["usual.dat"],
        "four.dat": head(2, 4, (2,)) + b"\x12",
        "legacy.dat": head(0x10, 8, (2,)) + b"\x12\x34",
        "tied.dat": FILES["usual.dat"],
        "float.dat": dat(np.zeros(2, np.float32)),
        "integer.dat": dat(np.zeros(2, np.int8)),
    }
    if quantization is not None:
        files["graph.quant"] = quantization
    with pytest.warns(FormatWarning) as caught:
        nnr.load(write_folder(tmp_path / "m", files))
    assert [str(warning.message) for warning in caught] == [
        f"scalar variables contain integers, but have no entry in graph.quant: {', '.join(map(ascii, untold))}"
    ]


WEIGHT = np.array([3, 4], np.uint8)


@pytest.mark.parametrize(
    ("data_type", "array", "fields", "message"),
    [
        ("scalar", WEIGHT, "xy", "'xy' is not a valid part of a tensor file header"),
        ("scalar", WEIGHT, "00" * 113, "is not a valid part of a tensor file header"),
        ("scalar", WEIGHT, head(2, 2, (2,))[16:].hex(), "an item does not fit the 2 bits declared in the header"),
        ("scalar", WEIGHT, head(2, 0, (2,))[16:].hex(), "cannot have 0 bits"),
        ("scalar", WEIGHT, head(2, 65, (2,))[16:].hex(), "cannot have 65 bits"),
        ("scalar", WEIGHT, head(2, 8, (2,), vendor=9)[16:].hex(), "of vendor 0x0009"),
        ("scalar", WEIGHT, head(1, 8, (2,))[16:].hex(), "unsigned integer is integer data; the variable is scalar"),
        ("integer", WEIGHT, head(5, 8, (2,))[16:].hex(), "boolean is logical data; the variable is integer"),
        ("logical", WEIGHT, head(5, 1, (2,))[16:].hex(), "unsigned integer is integer data; the variable is logical"),
    ],
)
@pytest.mark.parametrize("name", ["out.nnef", "out.tar", "out.tgz"])
def test_false_headers_write_nothing(
    name: str, data_type: str, array: Array, fields: str, message: str, tmp_path: Path
) -> None:
    graph = document(("scalar", "[1]", "a"), (data_type, "[2]", "w"))
    tensors: dict[str, Array] = {"a": np.ones(1, np.float32), "w": array}
    model = Model(tensors, Topology("nnef", graph), metadata={"nnef:w": fields})
    with pytest.raises(FormatError, match=rf"^w\.dat: .*{message}"):
        nnr.save(nnr.decode(nnr.encode(model)), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_headers_of_other_labels_are_passed_over(tmp_path: Path) -> None:
    model = nnef_model({"w": WEIGHT})
    model.metadata["nnef:W"] = model.metadata["nnef:x"] = "no header"
    nnr.save(model, tmp_path / "out.nnef")
    assert tree(tmp_path / "out.nnef") == {"graph.nnef": graph_text({"w": WEIGHT}), "w.dat": dat(WEIGHT)}
