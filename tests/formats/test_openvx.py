"""Folders for the OpenVX neural network extension: files, types, names, and models that cannot be written."""

from __future__ import annotations

import json
import re
import subprocess
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError
from nnr_codec.formats import FormatWarning
from nnr_codec.formats.openvx.client import literal, string
from nnr_codec.model import Array

from ..cli.support import DIGITS, call
from .openvx import compiled, compiles, run, written

NO_GRAPH = "the model has no NNEF or ONNX graph: the client loads the tensors, but builds no layers"


def saved(tensors: dict[str, Array], path: Path, **options: Any) -> dict[str, Any]:
    """Return the tensors in the ``tensors.json`` of a folder without layers, by name."""
    with pytest.warns(FormatWarning, match=NO_GRAPH):
        nnr.save(tensors, path, **options)
    found = json.loads((path / "tensors.json").read_text())
    return {tensor["name"]: tensor for tensor in found["tensors"]}


def content(folder: Path, tensor: dict[str, Any]) -> npt.NDArray[Any]:
    """Return the items of a file in the order and the shape of the description."""
    dtype = {"VX_TYPE_INT16": "<i2", "VX_TYPE_INT8": "i1", "VX_TYPE_UINT8": "u1"}[tensor["data_type"]]
    items = np.frombuffer((folder / tensor["file"]).read_bytes(), dtype)
    assert len(tensor["dims"]) == tensor["number_of_dims"]
    return items.reshape(tensor["dims"], order="F")


def test_it_is_a_format_that_only_writes() -> None:
    assert formats.get("openvx").NAME == "openvx"
    assert formats.by_suffix("net.OpenVX").NAME == "openvx"
    with pytest.raises(FormatError, match="can be written, but not read"):
        formats.reading("openvx")


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16, ">f4"])
def test_floats_are_integers_of_16_bits(dtype: Any, tmp_path: Path) -> None:
    """Row-major arrays are unchanged: the fastest changing dimension comes first."""
    array = (np.arange(-60, 60).reshape(2, 3, 4, 5) / 256).astype(dtype)
    found = saved({"w": array}, tmp_path / "x.openvx")["w"]
    assert found == {
        "name": "w",
        "file": "0-w.q78",
        "data_type": "VX_TYPE_INT16",
        "fixed_point_position": 8,
        "number_of_dims": 4,
        "dims": [5, 4, 3, 2],
        "is_turned": False,
    }
    items = content(tmp_path / "x.openvx", found)
    assert np.array_equal(items.T, array.astype("f8") * 256)


def test_integers_of_8_bits_stay_as_they_are(tmp_path: Path) -> None:
    tensors = {"s": np.arange(-128, 128).astype("i1").reshape(16, 16), "u": np.arange(256).astype("u1")}
    found = saved(tensors, tmp_path / "x.openvx")
    assert [(each["file"], each["data_type"], each["fixed_point_position"]) for each in found.values()] == [
        ("0-s.s8", "VX_TYPE_INT8", 0),
        ("1-u.u8", "VX_TYPE_UINT8", 0),
    ]
    for name, tensor in tensors.items():
        assert np.array_equal(content(tmp_path / "x.openvx", found[name]).T, tensor)


def test_scalars_and_many_dimensions(tmp_path: Path) -> None:
    """A tensor has at least one dimension, and "an arbitrary number" of them."""
    found = saved({"s": np.array(0.5), "d": np.ones((1, 2) * 4, "f4"), "v": np.ones((1, 3))}, tmp_path / "x.openvx")
    assert [each["dims"] for each in found.values()] == [[1], [2, 1] * 4, [3, 1]]
    compiles(tmp_path / "x.openvx")


@pytest.mark.parametrize("value", [2**-9, 128.0, -128.00390625, 1e300, np.nan, np.inf, -np.inf, 0.1, 5e-324])
def test_other_floats_are_refused(value: float, tmp_path: Path) -> None:
    with (
        pytest.warns(FormatWarning),
        pytest.raises(FormatError, match=r"tensor 'a/b' has values that Q7\.8 .* --fixed-point q7\.8"),
    ):
        nnr.save({"fine": np.ones(3), "a/b": np.array([1.0, value])}, tmp_path / "x.openvx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["?", "i2", "u2", "i4", "i8", "u8", ml_dtypes.int4])
def test_other_types_are_refused(dtype: Any, tmp_path: Path) -> None:
    with (
        pytest.warns(FormatWarning),
        pytest.raises(
            FormatError,
            match=rf"tensor 't': OpenVX does not support {np.dtype(dtype)}; supported types are Q7\.8, int8 and uint8",
        ),
    ):
        nnr.save({"t": np.zeros(3, dtype)}, tmp_path / "x.openvx")


def test_empty_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.warns(FormatWarning), pytest.raises(FormatError, match=r"tensor 'e' of shape \(0, 3\) has no elements"):
        nnr.save({"e": np.zeros((0, 3))}, tmp_path / "x.openvx")


@given(
    st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=5, unique=True).filter(
        lambda names: all("\0" not in name for name in names)
    ),
    hn.arrays("i2", hn.array_shapes(max_dims=5, max_side=4)),
)
def test_any_names_and_numbers(tmp_path_factory: pytest.TempPathFactory, names: list[str], levels: Array) -> None:
    folder = tmp_path_factory.mktemp("any") / "x.openvx"
    array = np.asarray(levels, "f4") / 256
    found = saved(dict.fromkeys(names, array), folder)
    assert list(found) == names
    assert len({each["file"].casefold() for each in found.values()}) == len(names)
    for each in found.values():
        assert re.fullmatch(r"\d-[A-Za-z0-9_-]{0,48}\.q78", each["file"])
        assert np.array_equal(content(folder, each).T, levels)
    assert (folder / "client.c").read_bytes().isascii()


@given(st.text())
def test_strings_of_c_say_what_they_are(text: str) -> None:
    """An octal escape ends after three digits, whatever follows."""
    written = string(text)
    assert re.fullmatch(r'"([A-Za-z0-9_./: -]|\\[0-7]{3})*"', written)
    data = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), written[1:-1].encode())
    assert data.decode("utf-8", "surrogatepass") == text


def test_literals() -> None:
    assert [literal(value) for value in (3, 0.5, 1e-05, 0.1, "MACRO")] == [
        "3",
        "0.5f",
        "9.999999747378752e-06f",
        "0.10000000149011612f",
        "MACRO",
    ]


@pytest.mark.medium
def test_names_come_out_of_the_compiled_client(tmp_path: Path) -> None:
    """The names are in the tables of C, read by another main function."""
    names = ['a"b\\n', "é/名", "*/ int x; /*", "%s%n", "??/", "a\nb", "0", "\x01" + "7"]
    with pytest.warns(FormatWarning):
        nnr.save({name: np.ones(2) for name in names}, tmp_path / "x.openvx")
    client = tmp_path / "x.openvx" / "client.c"
    with client.open("a") as file:
        file.write("\nint main(void)\n{\n    vx_size k;\n    for (k = 0; nnr_tensors[k].name; k++)\n")
        file.write(
            "        fwrite(nnr_tensors[k].name, 1, strlen(nnr_tensors[k].name) + 1, stdout);\n    return 0;\n}\n"
        )
    done = subprocess.run([compiled(tmp_path / "x.openvx", tmp_path / "names")], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == names


def test_an_existing_folder(tmp_path: Path) -> None:
    target = tmp_path / "x.openvx"
    saved({"a": np.ones(2), "b": np.ones(2)}, target)
    with pytest.warns(FormatWarning), pytest.raises(FileExistsError):
        nnr.save({"c": np.ones(2)}, target)
    assert list(saved({"c": np.ones(2)}, target, overwrite=True)) == ["c"]
    assert sorted(path.name for path in target.iterdir()) == ["0-c.q78", "client.c", "client.h", "tensors.json"]
    other = tmp_path / "home"
    other.mkdir()
    (other / "letters.txt").write_text("dear")
    with pytest.warns(FormatWarning), pytest.raises(FileExistsError, match=r"without tensors\.json"):
        nnr.save({"c": np.ones(2)}, other, format="openvx", overwrite=True)
    assert (other / "letters.txt").read_text() == "dear"


def test_the_same_files_each_time(tmp_path: Path) -> None:
    folders = [written(nnr.load(DIGITS), tmp_path / f"{k}.openvx", fold_batchnorm=True, jobs=k) for k in (1, 2)]
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert first == second


@pytest.mark.medium
def test_a_client_refuses_a_file_of_another_size(tmp_path: Path) -> None:
    folder = written(nnr.load(DIGITS), tmp_path / "x.openvx", fold_batchnorm=True)
    program = compiled(folder, tmp_path / "client")
    for change in (lambda data: data + b"\0", lambda data: data[:-1]):
        (path,) = folder.glob("*fc2_bias*")
        before = path.read_bytes()
        path.write_bytes(change(before))
        with pytest.raises(AssertionError, match="wrong file size, or unreadable file"):
            run(program, folder, [np.zeros(64)])
        path.write_bytes(before)
    path.unlink()
    with pytest.raises(AssertionError, match="opening"):
        run(program, folder, [np.zeros(64)])


# ------------------------------------------------------------------------------------------------ command line
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, target = tmp_path / "x.nnr", tmp_path / "anything"
    made = call(capsys, "encode", DIGITS, "-o", stream, "--fixed-point", "q7.8", "--fold-batchnorm")
    assert (made.code, "warning" in made.err) == (0, False)
    done = call(capsys, "decode", stream, "--to", "openvx", "-o", target)
    assert (done.code, "warning" in done.err) == (0, False)
    compiles(target)
    assert call(capsys, "decode", stream, "-o", tmp_path / "y.openvx", "-j", 2).code == 0


def test_what_saturates_is_a_line_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "x.npz", w=np.array([1.0, -200.0], "f4"))
    done = call(capsys, "encode", tmp_path / "x.npz", "-o", tmp_path / "x.nnr", "--fixed-point", "q7.8")
    assert done.code == 0
    assert (
        "nnr: warning: parameters outside -128..127.99609375 of q7.8 saturate: 'w' (1, the largest -200)\n" in done.err
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--qp", "-20"], "--qp"),
        (["--quality", "30"], "--quality"),
        (["--snr", "30"], "--snr"),
        (["--max-error", "0.1"], "--max-error"),
        (["--target-size", "1MB"], "--target-size"),
        (["--target-ratio", "0.2"], "--target-ratio"),
        (["--lossless"], "--lossless"),
        (["--preset", "small"], "--quality"),
        (["--dependent-quantization"], "--dependent-quantization"),
        (["--local-scaling"], "--local-scaling"),
        (["--rule", "w:qp=-3"], "(--)?qp"),
    ],
)
def test_usage_errors(options: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "encode", DIGITS, "-o", tmp_path / "x.nnr", "--fixed-point", "q7.8", *options)
    assert done.code == 2
    assert re.search(rf"fixed.point determines all step sizes, so {named} has no effect", done.err)


def test_a_bitstream_of_other_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream, target = tmp_path / "x.nnr", tmp_path / "x.openvx"
    assert call(capsys, "encode", DIGITS, "-o", stream).code == 0
    done = call(capsys, "decode", stream, "-o", target)
    assert done.code not in (0, 2)
    assert "encode the model with --fixed-point q7.8" in done.err
    assert not target.exists()


def test_a_folded_model_without_its_graph(tmp_path: Path) -> None:
    """With the option that the error suggests, the error gives another possible cause."""
    folded = nnr.decode(nnr.encode(nnr.load(DIGITS), fixed_point="q7.8", fold_batchnorm=True))
    with pytest.warns(FormatWarning), pytest.raises(FormatError, match=r"var.*folded .* with their NNEF graph"):
        nnr.save(dict(folded.tensors), tmp_path / "x.openvx")


def test_no_warning_for_complete_clients(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = nnr.encode(nnr.load(DIGITS), fixed_point="q7.8", fold_batchnorm=True)
        nnr.decode_file(data, tmp_path / "x.openvx")
