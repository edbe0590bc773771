"""SkriptND: folders are restored unchanged, and variables are compared with tensor files."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.errors import FormatError, LimitError, NnrError
from nnr_codec.formats import skriptnd
from nnr_codec.limits import Limits
from nnr_codec.model import Model, Topology

from ..shared import SHARED, examples, needs_shared
from .support import assert_same, dat, graph_text, head, tree, write_folder
from .test_nnef_headers import FILES as HEADERS
from .test_nnef_headers import NUMBERS

RNG = np.random.default_rng(2)
MAIN = b"""# It's a "network".
import nn, own;

graph Net {
    @input { x: real[1,4]; }
    @output { y: real[1,4]; }
    @variable { w: real[4,4]; }
    @compose { z = nn.relu(x); y = own.f(z, w); }
}
"""
# The module is absent, so any tensor may belong to its operators.
OPEN = b"import elsewhere;\ngraph Net { }\n"
WEIGHT = RNG.normal(size=(4, 4)).astype(np.float32)


def files() -> dict[str, bytes]:
    """Return a model of two tensors and two modules beside the main one."""
    return {
        "main.sknd": MAIN,
        "own.sknd": b"operator f {\r\n\t# caf\xc3\xa9 'x\r\n\t@variable { b: real[4]; }\r\n}",
        "sub/deep/ops.sknd": b"",
        "main.Net.w.dat": dat(WEIGHT),
        "sub/main.Net.b.dat": dat(np.arange(4, dtype=np.float32)),
    }


def through(folder: Path, target: Path, **options: object) -> bytes:
    """Encode a folder, decode it to another one, and return the bitstream."""
    data = nnr.encode(folder, **options)  # type: ignore[arg-type]
    nnr.decode_file(io.BytesIO(data), target)
    return data


def texts(data: bytes) -> list[str]:
    return [unit.detail for unit in nnr.inspect(data) if unit.type == "NNR_TPL"]


# ------------------------------------------------------------------------------------------------ reading
@pytest.mark.parametrize("name", ["", "main.sknd"], ids=["folder", "text"])
def test_a_folder(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", files())
    module = formats.recognise(folder / name)
    assert module is not None
    assert module.NAME == "skriptnd"
    model = nnr.load(folder / name)
    assert_same(model.tensors, {"main.Net.w": WEIGHT, "sub/main.Net.b": np.arange(4, dtype=np.float32)})
    assert (model.topology, model.format) == (Topology("", MAIN), "skriptnd")
    assert model.metadata == {
        "skriptnd:own.sknd": "operator f {\r\n\t# caf\xe9 'x\r\n\t@variable { b: real[4]; }\r\n}",
        "skriptnd:sub/deep/ops.sknd": "",
    }
    assert formats.topology_of(folder / name) == model.topology


def test_it_comes_back(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", files())
    data = through(folder, tmp_path / "out.sknd", exact=True)
    assert tree(tmp_path / "out.sknd") == files()
    assert "UNREC" in texts(data)[0]
    assert len(texts(data)) == 2
    assert not any("NNEF" in text for text in texts(data))
    through(folder, tmp_path / "lossy.sknd")
    assert {name: text for name, text in tree(tmp_path / "lossy.sknd").items() if name.endswith(".sknd")} == {
        name: text for name, text in files().items() if name.endswith(".sknd")
    }


def test_a_plain_model_has_no_record(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {name: files()[name] for name in ("main.sknd", "main.Net.w.dat")})
    assert len(texts(through(folder, tmp_path / "out.sknd", exact=True))) == 1
    assert tree(tmp_path / "out.sknd") == tree(folder)


@needs_shared
def test_digits(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    folder = (SHARED or Path()) / "models" / "digits_cnn.sknd"
    data = through(folder, tmp_path / "out.sknd", exact=True)
    assert tree(tmp_path / "out.sknd") == tree(folder)
    lossy = through(folder, tmp_path / "lossy.sknd")
    record_property("figure: digits_cnn.sknd", f"{len(data):,} bytes lossless, {len(lossy):,} by default")
    source, decoded = nnr.load(folder), nnr.load(tmp_path / "lossy.sknd")
    assert min(nnr.compare_models(source, decoded).snr, 100) > 40
    assert (tmp_path / "lossy.sknd" / "main.sknd").read_bytes() == (folder / "main.sknd").read_bytes()


@pytest.mark.parametrize(
    "file",
    [
        dat(np.array([True, False, True])),
        head(5, 8, (3,)) + b"\0\1\1",
        head(5, 8, (3,)) + b"\0\1\2",
        head(4, 5, (3,)) + b"\x0f\x80",
        head(1, 8, (2, 1)) + b"\0\xff",
        head(2, 8, (2,)) + b"\0\xff",
        head(3, 8, (2,)) + b"\0\xff",
        head(3, 16, (1,), parameters=b"\1\2\3") + b"\0\xff",
        head(0x10, 8, (2,), parameters=b"\0\0\x80\x3f") + b"\0\xff",
        head(0, 16, (1, 2)) + b"\0\x3c\0\xbc",
        head(0, 64, (1,), parameters=bytes(40) + b"x") + bytes(8),
        head(0, 32, ()) + b"\0\0\x80\x3f",
    ],
    ids=lambda data: data[16 + 32 :][:6].hex(),
)
def test_every_header(file: bytes, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"main.sknd": OPEN, "a.dat": file})
    through(folder, tmp_path / "out.sknd", exact=True)
    assert tree(tmp_path / "out.sknd") == tree(folder)


_NAMES = st.from_regex(r"([A-Za-z_][a-z0-9_]{0,3}/){0,2}(main\.[A-Z][a-z]{0,3}\.)?[A-Za-z_]{1,5}", fullmatch=True)
_DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"])
_CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0\ufeff\r\n")
_SHAPES = st.lists(st.integers(1, 4), max_size=4)


@pytest.mark.medium
@settings(max_examples=examples(40))
@given(
    tensors=st.dictionaries(_NAMES, st.tuples(_DTYPES, _SHAPES, st.binary(max_size=4)), max_size=5),
    modules=st.dictionaries(_NAMES, st.text(_CHARACTERS).map("operator f {{}} # {}".format), max_size=3),
)
def test_any_folder(
    tensors: dict[str, tuple[str, list[int], bytes]],
    modules: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    content = {f"{name}.sknd": text.encode() for name, text in modules.items() if name.casefold() != "main"}
    for name, (dtype, shape, seed) in tensors.items():
        array = np.random.default_rng([*seed]).integers(0, 2 if dtype == "b1" else 100, shape)
        content[f"{name}.dat"] = dat(np.asarray(array).astype(dtype))
    write_folder(folder / "m", {"main.sknd": OPEN, **content})
    through(folder / "m", folder / "out.sknd", exact=True)
    assert tree(folder / "out.sknd") == {"main.sknd": OPEN, **content}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"graph G {}", True),
        (b"graph\tG_1{", True),
        (b"version 2.0;\nimport nn;\ngraph G {", True),
        (b"# graph\n\n  # x\npublic operator f {}\r\ngraph\n G\n{", True),
        (b"extension a; import b\n import c # no semicolon\ngraph A { } graph B { }", True),
        (b'operator f { @assert { a: "don\'t"; } }\ngraph G {', True),
        (b"", False),
        (b"graph G", False),
        (b"graph G(x) -> (y) {", False),
        (b"version 1.0;\ngraph G(x) -> (y)\n{ y = x; }", False),
        (b"version 1.0; # graph G {\ngraph G(x) -> (y) { y = f('graph G {'); }", False),
        (b"import nn;\noperator f { }", False),
        (b"import nn; # graph G {", False),
        (b'import nn; operator f { @assert { "graph G {"; } }', False),
        (b"x graph G {", False),
        (b"<net version='11'><layers/>graph G {</net>", False),
        (b"\xef\xbb\xbfgraph G {", False),
        (b"subgraph G {", False),
        (b"import nn; subgraph G {", False),
        (b"import " + b"\"'" * 100_000 + b"'" * 50_001, False),
        (b"import " + b"graph " * 100_000, False),
    ],
    ids=lambda value: ascii(value[:20]) if isinstance(value, bytes) else None,
)
def test_recognition_by_text(text: bytes, expected: bool, tmp_path: Path) -> None:
    assert skriptnd.owns(Topology("", text)) is expected
    assert skriptnd.recognise(io.BytesIO(text)) is expected
    assert formats.wiring(Topology("", text)).shapes == {}
    module = formats.of_topology(Topology("", text))
    assert (module is not None and module.NAME == "skriptnd") is expected


def test_a_text_alone(tmp_path: Path) -> None:
    assert formats.topology_of(io.BytesIO(MAIN)) == Topology("", MAIN)
    with pytest.raises(FormatError, match=r"the stream: this is a single module; give the folder of the model"):
        nnr.load(MAIN)
    (tmp_path / "other.sknd").write_bytes(MAIN)
    with pytest.raises(FormatError, match=r"give the folder of the model, or its main\.sknd"):
        nnr.load(tmp_path / "other.sknd")
    data = nnr.encode(write_folder(tmp_path / "m", files()), topology="external", exact=True)
    with pytest.raises(FormatError, match="requires a graph of skriptnd"):
        nnr.decode_file(io.BytesIO(data), tmp_path / "out.sknd")
    nnr.decode_file(io.BytesIO(data), tmp_path / "out.sknd", topology=tmp_path / "other.sknd")
    assert tree(tmp_path / "out.sknd") == files()


def test_a_folder_that_is_nnef_as_well(tmp_path: Path) -> None:
    """The older format is selected and lists the omitted files, unless the other is named."""
    folder = write_folder(
        tmp_path / "m", {"graph.nnef": graph_text({"w": WEIGHT}), "w.dat": dat(WEIGHT), "main.sknd": MAIN}
    )
    for source in (folder, folder / "graph.nnef"):
        with pytest.warns(formats.FormatWarning, match=r"left out: 'main\.sknd'"):
            assert formats.load(source).format == "nnef"
    with pytest.raises(FormatError, match=r"would be lost: 'main\.sknd'"):
        formats.load(folder, strict=True)
    for source, name in ((folder, "skriptnd"), (folder / "main.sknd", None)):
        with pytest.warns(formats.FormatWarning, match=r"left out: 'graph\.nnef'"):
            assert formats.load(source, format=name).format == "skriptnd"


def test_files_that_nothing_carries(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {**files(), "README": b"", "w.DAT": b"", ".git/x.dat": b"", "a/b.txt": b""})
    with pytest.warns(formats.FormatWarning, match=r"left out: 'README', 'a/b\.txt', 'w\.DAT'$"):
        assert len(nnr.load(folder)) == 2
    with pytest.raises(FormatError, match=r"would be lost: 'README', 'a/b\.txt', 'w\.DAT'$"):
        formats.load(folder, strict=True)
    many = write_folder(tmp_path / "n", {"main.sknd": MAIN, **{f"x{k:02}": b"" for k in range(30)}})
    with pytest.raises(FormatError, match=r"'x07' and 22 more$"):
        formats.load(many, strict=True)


# ------------------------------------------------------------------------------------------------ rejected input
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"main.sknd": b"import nn;"}, r"main\.sknd has no graph"),
        ({"main.sknd": MAIN + b"\xff"}, r"main\.sknd: byte \d+ is not UTF-8"),
        ({"main.sknd": MAIN + b"\0"}, r"main\.sknd: byte \d+ is NUL"),
        ({"main.sknd": b"\xef\xbb\xbf" + MAIN}, "a byte order mark"),
        ({"x.sknd": b"\xff"}, r"x\.sknd: byte 0 is not UTF-8"),
        ({"x.sknd": b"a\0"}, r"x\.sknd: byte 1 is NUL"),
        ({"x.dat": b""}, r"x\.dat: the file has 0 bytes; the header"),
        ({"x.dat": dat(WEIGHT)[:-1]}, r"x\.dat: the file has 191 bytes; header and items require 192"),
        ({"x y.dat": dat(WEIGHT)}, "has characters that NNEF does not permit"),
        ({"x y.sknd": b""}, "has characters that NNEF does not permit"),
        ({"aux.sknd": b""}, r"'aux\.sknd' is not a valid path of a module"),
        ({"Main.sknd": b""}, r"'Main\.sknd' is not a valid path of a module"),
        ({"a.sknd/b.dat": dat(WEIGHT)}, "contains a folder with a file extension"),
        ({"a.dat./b.sknd": b""}, "contains a folder with a file extension|not a valid path of a module"),
        ({"aux.dat": dat(WEIGHT), "%61ux.dat": dat(WEIGHT)}, "two tensor files have the same tensor name"),
    ],
)
def test_malformed_models(content: dict[str, bytes], message: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"main.sknd": MAIN, **content})
    with pytest.raises(FormatError, match=message):
        formats.load(folder, format="skriptnd")


def test_folders_without_the_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", {"own.sknd": MAIN, "a.dat": dat(WEIGHT)})
    with pytest.raises(FormatError, match="the folder contains no model of a supported format"):
        nnr.load(folder)
    with pytest.raises(FormatError, match=r"main\.sknd is missing$"):
        formats.load(folder, format="skriptnd")
    os.symlink("own.sknd", folder / "main.sknd")
    with pytest.raises(FormatError, match=r"main\.sknd: 'main\.sknd' is a symbolic link; links are not followed"):
        nnr.load(folder)
    (folder / "main.sknd").unlink()
    (folder / "own.sknd").rename(folder / "main.sknd")
    os.symlink("a.dat", folder / "w.dat")
    with pytest.raises(FormatError, match=r"w\.dat: 'w\.dat' is a symbolic link"):
        nnr.load(folder)


def test_limits(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", files())
    modules = sum(len(name) + len(text) for name, text in files().items() if name in ("own.sknd", "sub/deep/ops.sknd"))
    for limits, name in (
        (Limits(max_topology_bytes=len(MAIN) - 1), "max_topology_bytes"),
        (Limits(max_side_info_bytes=modules - 1), "max_side_info_bytes"),
        (Limits(max_names=4), "max_names"),
        (Limits(max_tensor_bytes=63), "max_tensor_bytes"),
        (Limits(max_total_bytes=79), "max_total_bytes"),
    ):
        with pytest.raises(LimitError, match=name):
            formats.load(folder, limits=limits)
    fitting = Limits(max_topology_bytes=len(MAIN), max_side_info_bytes=modules, max_total_bytes=80)
    assert len(formats.load(folder, limits=fitting)) == 2


def test_truncated_anywhere(tmp_path: Path) -> None:
    content = {"main.sknd": OPEN, "a.dat": dat(WEIGHT)}
    folder = write_folder(tmp_path / "m", content)
    for length in range(len(content["a.dat"])):
        (folder / "a.dat").write_bytes(content["a.dat"][:length])
        with pytest.raises(FormatError):
            nnr.load(folder)


def test_damaged_anywhere(tmp_path: Path) -> None:
    """A damaged tensor file is restored unchanged, or an error describes the damage."""
    whole, outcomes = dat(WEIGHT[:1]), set()
    folder = write_folder(tmp_path / "m", {"main.sknd": OPEN})
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << int(RNG.integers(8))
        (folder / "a.dat").write_bytes(damaged)
        try:
            nnr.save(nnr.load(folder), tmp_path / "out.sknd", overwrite=True)
            outcomes.add("read")
            assert (tmp_path / "out.sknd" / "a.dat").read_bytes() == damaged
        except NnrError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


# ------------------------------------------------------------------------------------------------ variables and files
GRAPH = b"""import nn;
graph Net {
    @attrib { n: int = 4; }
    @variable {
        w: real[4, 2 * 2];
        b: real[n];
    }
}
"""
FITTING = {"main.sknd": GRAPH, "main.Net.w.dat": dat(WEIGHT), "main.Net.b.dat": dat(WEIGHT[0])}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"main.Net.b.dat": None}, r"main\.sknd:6:9: variable 'b' has no file main\.Net\.b\.dat"),
        ({"main.Net.w.dat": None}, r"main\.sknd:5:9: variable 'w' has no file main\.Net\.w\.dat"),
        (
            {"main.Net.v.dat": dat(WEIGHT)},
            r"main\.sknd:2:7: the model has no variables for the files 'main\.Net\.v\.dat'",
        ),
        ({"w.dat": dat(WEIGHT)}, r"2:7: the model has no variables for the files 'w\.dat'"),
        ({"sub/main.Net.w.dat": dat(WEIGHT)}, r"2:7: the model has no variables for the files 'sub/main\.Net\.w\.dat'"),
        (
            {f"x{k:02}.dat": dat(WEIGHT) for k in range(30)},
            r"2:7: the model has no variables for the files 'x00\.dat', .*'x07\.dat' and 22 more",
        ),
        (
            {"main.Net.w.dat": dat(WEIGHT[:3])},
            r"5:9: variable 'w' has shape \[4, 4\], but main\.Net\.w\.dat has \[3, 4\] \(NNEF 2 draft, 2\.7\)$",
        ),
        ({"main.Net.w.dat": dat(WEIGHT[0])}, r"5:9: variable 'w' has shape \[4, 4\], but main\.Net\.w\.dat has \[4\]"),
        ({"main.Net.b.dat": dat(WEIGHT)}, r"6:9: variable 'b' has shape \[\?\], but main\.Net\.b\.dat has \[4, 4\]"),
        (
            {"main.Net.w.dat": dat(WEIGHT.astype(np.int16))},
            r"5:9: variable 'w' is real, but main\.Net\.w\.dat contains int16, which is integer data",
        ),
        (
            {"main.Net.b.dat": dat(WEIGHT[0] > 0)},
            r"6:9: variable 'b' is real, but main\.Net\.b\.dat contains bool, which is logical data",
        ),
        ({"main.sknd": GRAPH.replace(b"2 * 2", b"2 / 0")}, r"main\.sknd:5:20: division by zero"),
        ({"main.sknd": GRAPH.replace(b"n];", b"n;")}, r"main\.sknd:6:18: expected ',' or '\]', found ';'"),
        ({"x.sknd": b"operator F {\n @variable }"}, r"x\.sknd:2:12: expected '\{', found '\}'"),
        ({"a/x.sknd": b"graph F { }"}, r"a/x\.sknd:1:1: only main\.sknd may define a graph"),
        # A text that begins like a graph, in a string.
        ({"main.sknd": b'operator f { @assert { a: "\ngraph G {a}"; } }'}, r"2:18: the main module has no graph"),
    ],
)
def test_files_that_do_not_fit_the_variables(changes: dict[str, bytes | None], message: str, tmp_path: Path) -> None:
    content = {name: data for name, data in {**FITTING, **changes}.items() if data is not None}
    with pytest.raises(FormatError, match=message):
        nnr.encode(write_folder(tmp_path / "m", content))


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ("w: real[4,4];", ["main.Net.w"]),
        ("w: real[4,4];", ["Net.w"]),
        ("w: real[4,4];", ["w"]),
        ("w: real;", ["w"]),
        ("w: T[4,n];", ["w"]),
        ("w: num[n ..(2)];", ["w"]),
        ("w: real[s..];", ["w"]),
        ("w: optional real[4,4];", []),
        ("w: real[4,4]..(k);", ["main.Net.w.1", "main.Net.w.2"]),
        ("w: real[4,4]..;", []),
    ],
)
def test_names_and_shapes_of_files(variables: str, names: list[str], tmp_path: Path) -> None:
    text = f"graph Net {{ @dtype {{ T: num; }} @attrib {{ n: int; s: int..; }} @variable {{ {variables} }} }}"
    content = {"main.sknd": text.encode(), **{f"{name}.dat": dat(WEIGHT) for name in names}}
    assert list(nnr.load(write_folder(tmp_path / "m", content))) == names


@pytest.mark.parametrize(
    ("text", "modules"),
    [
        ("operator F { @variable { v: real; } }", {}),
        ("import ops;", {"ops": "operator F { @variable { v: real; } }"}),
        ("import a.ops;", {"a/ops": "import nn; operator F { @variable { v: real; } }"}),
        ("import elsewhere;", {}),
        ("import ops;", {"ops": "import elsewhere;"}),
    ],
)
def test_variables_of_operators(text: str, modules: dict[str, str], tmp_path: Path) -> None:
    """Their scopes would require composition of the graph, which is not implemented."""
    content = {"main.sknd": f"{text}\ngraph Net {{ }}".encode(), "main.Net.op1.v.dat": dat(WEIGHT)}
    content |= {f"{path}.sknd": module.encode() for path, module in modules.items()}
    assert list(nnr.load(write_folder(tmp_path / "m", content))) == ["main.Net.op1.v"]
    without = {
        name: data.replace(b"v: real", b"u: real").replace(b"elsewhere", b"nn") for name, data in content.items()
    }
    with pytest.raises(FormatError, match=r"no variables for the files 'main\.Net\.op1\.v\.dat'"):
        nnr.load(write_folder(tmp_path / "n", without))


def test_several_graphs(tmp_path: Path) -> None:
    """Only the files of the first graph must exist, but existing files of the others are checked."""
    text = b"graph Net { @variable { w: real[4,4]; } }\ngraph Other { @variable { w: real[4]; v: real[2]; } }"
    folder = write_folder(tmp_path / "m", {"main.sknd": text, "main.Net.w.dat": dat(WEIGHT)})
    assert len(nnr.load(folder)) == 1
    write_folder(folder, {"main.Net.label.v.dat": dat(WEIGHT[0])})
    assert len(nnr.load(folder)) == 2
    write_folder(folder, {"main.Other.w.dat": dat(WEIGHT)})
    with pytest.raises(FormatError, match=r"2:27: variable 'w' has shape \[4\], but main\.Other\.w\.dat has \[4, 4\]"):
        nnr.load(folder)


@pytest.mark.parametrize("topology", ["carried", "external"])
def test_bitstreams_with_texts_that_are_refused_today(topology: str, tmp_path: Path) -> None:
    """Earlier versions encoded any text that looks like a graph, and any files."""
    text, metadata = b"graph Net { @variables w: ] }", {"skriptnd:own.sknd": "operator ("}
    content = {"main.sknd": text, "own.sknd": b"operator (", "v.dat": dat(WEIGHT)}
    folder = write_folder(tmp_path / "m", content)
    data = nnr.encode(Model({"v": WEIGHT}, Topology("", text), metadata=metadata), topology=topology, exact=True)  # type: ignore[arg-type]
    given = {"topology": folder} if topology == "external" else {}
    nnr.decode_file(io.BytesIO(data), tmp_path / "out.sknd", **given)
    assert tree(tmp_path / "out.sknd") == content
    assert nnr.verify(data).violations == []
    with pytest.raises(FormatError, match=r"main\.sknd:1:13: unknown block '@variables'"):
        nnr.load(tmp_path / "out.sknd")


# ------------------------------------------------------------------------------------------------ on access
def test_tensors_are_read_on_access(tmp_path: Path) -> None:
    large = np.zeros((1 << 10, 3 << 10), np.float32)
    folder = write_folder(tmp_path / "m", {"main.sknd": OPEN, "a.dat": dat(large), "b.dat": dat(large)})
    tracemalloc.start()
    try:
        model = nnr.load(folder)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        nnr.save(model, tmp_path / "out.sknd")
        assert tracemalloc.get_traced_memory()[1] < large.nbytes + (4 << 20)
    finally:
        tracemalloc.stop()
    (folder / "a.dat").write_bytes(dat(large[:1]))
    with pytest.raises(FormatError, match=r"a\.dat has changed"):
        model["a"]


# ------------------------------------------------------------------------------------------------ writing
def saved(folder: Path, tensors: dict[str, np.ndarray], **metadata: str) -> None:
    named = {f"skriptnd:{key}": text for key, text in metadata.items()}
    skriptnd.save(Model(tensors, Topology("", OPEN), metadata=named), folder / "m.sknd", overwrite=False)


def test_what_it_is_written_from(tmp_path: Path) -> None:
    for topology in (None, Topology("", b"<net"), Topology("nnef", MAIN)):
        with pytest.raises(FormatError, match="requires a graph of skriptnd"):
            nnr.save(Model({"w": WEIGHT}, topology), tmp_path / "m.sknd")
    for tensors, message in (
        ({"a b": WEIGHT}, "characters"),
        ({"a": np.zeros((0, 2))}, "each at least 1"),
        ({"a": WEIGHT.astype(complex)}, "nnef does not support dtype complex128"),
        ({"a/b": WEIGHT, "a\\b": WEIGHT}, "have the same file"),
        ({"x.dat/a": WEIGHT}, "contains a folder with a file extension"),
        ({"main.sknd/a": WEIGHT}, "contains a folder with a file extension"),
    ):
        with pytest.raises(FormatError, match=message):
            saved(tmp_path, tensors)
    for name in ("x.txt", "x", "", ".sknd.", "a.dat/x.sknd", "main.sknd", "MAIN.sknd"):
        with pytest.raises(
            FormatError, match=r"path of a module|folder with a file extension|is not a valid name|is empty"
        ):
            saved(tmp_path, {"w": WEIGHT}, **{name: "text"})
    for text in ("\0", "\udc80", "\ufeff"):
        with pytest.raises(FormatError, match=r"x\.sknd: "):
            saved(tmp_path, {"w": WEIGHT}, **{"x.sknd": text})
    with pytest.raises(FormatError, match="is not a valid part of a tensor file header"):
        saved(tmp_path, {"w": WEIGHT}, **{"w.dat": "zz"})
    assert os.listdir(tmp_path) == []
    model = Model({"w": WEIGHT}, Topology("", MAIN), metadata={"nnef:w": "zz", "other": "x"})
    with pytest.warns(formats.FormatWarning, match="a SkriptND folder cannot store the metadata"):
        nnr.save(model, tmp_path / "m.sknd")
    assert set(tree(tmp_path / "m.sknd")) == {"main.sknd", "w.dat"}
    model = Model({"w": WEIGHT, "again": WEIGHT}, Topology("", MAIN), aliases={"again": "w"})
    with pytest.warns(formats.FormatWarning, match="cannot store the ties"):
        nnr.save(model, tmp_path / "tied.sknd")


@pytest.mark.parametrize("name", [".w", "a/.b/w", ".git/w"])
def test_what_would_be_passed_over_is_not_written(name: str, tmp_path: Path) -> None:
    for tensors, modules in (({name: WEIGHT}, {}), ({"w": WEIGHT}, {f"{name}.sknd": "text"})):
        with pytest.raises(FormatError, match="is hidden"):
            saved(tmp_path, tensors, **modules)
    assert os.listdir(tmp_path) == []


def test_case_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, {"w": WEIGHT, "W": -WEIGHT})
    assert_same(nnr.load(tmp_path / "m.sknd").tensors, {"W": -WEIGHT, "w": WEIGHT})
    created = Path.open

    def ignoring(path: Path, mode: str = "r") -> object:
        return created(path.with_name(path.name.lower()), mode)

    monkeypatch.setattr(Path, "open", ignoring)
    with pytest.raises(FormatError, match="has the same name as another file"):
        saved(tmp_path / "m.sknd", {"w": WEIGHT, "W": -WEIGHT})


def test_what_stands_there(tmp_path: Path) -> None:
    model = nnr.load(write_folder(tmp_path / "m", files()))
    home = write_folder(tmp_path / "out.sknd", {"precious": b""})
    with pytest.raises(FileExistsError):
        nnr.save(model, home)
    with pytest.raises(FileExistsError, match=r"main\.sknd"):
        nnr.save(model, home, overwrite=True)
    write_folder(home, {"main.sknd": b""})
    nnr.save(model, home, overwrite=True)
    assert tree(home) == files()


def test_names_for_which_windows_has_other_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skriptnd, "SYSTEM", "nt")
    saved(tmp_path, {"aux/w": WEIGHT})
    assert set(tree(tmp_path / "m.sknd")) == {"main.sknd", "%61ux/w.dat"}
    assert_same(nnr.load(tmp_path / "m.sknd").tensors, {"aux/w": WEIGHT})


def test_to_other_formats(tmp_path: Path) -> None:
    data = nnr.encode(write_folder(tmp_path / "m", files()), exact=True)
    with pytest.warns(formats.FormatWarning, match="cannot store the topology"):
        nnr.decode_file(io.BytesIO(data), tmp_path / "m.npz")
    assert np.load(tmp_path / "m.npz")["main.Net.w"].tobytes() == WEIGHT.tobytes()


def test_items_of_types_0x10_and_0x11_are_integers_here_and_numbers_elsewhere(tmp_path: Path) -> None:
    text = b"graph Net { @variable { a: real[2, 2]; b: real[3]; c: int[2]; } }"
    content = {
        "main.sknd": text,
        "main.Net.a.dat": HEADERS["linear.dat"],
        "main.Net.b.dat": HEADERS["logarithmic.dat"],
        "main.Net.c.dat": dat(np.array([-1, 2], np.int16)),
    }
    folder = write_folder(tmp_path / "m", content)
    assert nnr.verify_model(folder).violations == []
    data = through(folder, tmp_path / "out.sknd")
    assert tree(tmp_path / "out.sknd") == content
    numbers = {f"main.Net.{name}": NUMBERS[kind] for name, kind in (("a", "linear"), ("b", "logarithmic"))}
    with pytest.warns(formats.FormatWarning, match="cannot store the topology"):
        nnr.decode_file(io.BytesIO(data), tmp_path / "m.safetensors")
    dequantized = nnr.dequantized(folder)
    assert dequantized.topology == Topology("", text)
    for found in (nnr.load(tmp_path / "m.safetensors"), dequantized):
        for name, values in numbers.items():
            assert found[name].dtype == np.float32
            assert found[name].tolist() == np.array(values, np.float32).tolist()
            assert f"skriptnd:{name}.dat" not in found.metadata
        assert found["main.Net.c"].dtype == np.int16
