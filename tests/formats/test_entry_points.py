"""Formats of other packages: they are found, come after the built-in formats, and cannot break other features.

The packages are in a folder on the path, with the metadata that pip would have written.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec import formats
from nnr_codec.formats import plugins
from nnr_codec.model import Block, Topology

from ..cli.support import Result, call, process

pytestmark = pytest.mark.medium

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
TENSORS = {"w": np.array([[1.5, -2.0], [0.25, 8.0]], np.float32), "b": np.array([3.0, 4.0], np.float32)}
JSON = '{"weights": {"w": [[1.5, -2.0], [0.25, 8.0]], "b": [3.0, 4.0]}}'

#: A minimal format, for variations.
MODULE = """
NAME, DESCRIPTION, SUFFIXES, READS = "odd", "an odd format", (".odd",), "an .odd file"
def recognise(source):
    return False
def load(source, limits, *, strict=False):
    raise NotImplementedError
def save(model, path, *, overwrite):
    path.write_bytes(b"odd")
"""


def published(language: str) -> str:
    """Return the example of the page's section about formats of other packages."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## A format of your own\n")[2].partition("\n## ")[0]
    (found,) = re.findall(rf"^```{language}\n(.+?)^```$", section, re.MULTILINE | re.DOTALL)
    return str(found)


def distribution(site: Path, name: str, module: str, source: str) -> None:
    """Write an installed package with one format."""
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    info = site / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nnr_codec.formats]\n{name} = {module}\n")
    forget()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder of packages for this process and its children; chdir to a folder with m.npz, m.nnr, unknown."""
    site = tmp_path / "site"
    site.mkdir()
    before = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(site), before))))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(site)
    forget()
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    np.savez("m.npz", **TENSORS)  # type: ignore[arg-type]
    Path("m.nnr").write_bytes(nnr.encode(TENSORS, exact=True))
    Path("unknown").write_text("nobody knows this")
    yield site
    forget()


def forget() -> None:
    """Clear the cached information about other packages."""
    plugins.entries.cache_clear()
    plugins.named.cache_clear()
    for name in ("odd_format", "nnr_json"):
        sys.modules.pop(name, None)


class Run:
    """Runner of the command, which must exit with the expected code and without a traceback."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: object, code: int = 0) -> Result:
        done = call(self._capsys, *arguments)
        assert done.code == code, (arguments, done)
        assert "Traceback" not in done.out + done.err
        return done

    def apart(self, *arguments: object, code: int = 0, **options: Any) -> Result:
        """Run the installed command in a separate process."""
        done = process(*arguments, **options)
        assert done.returncode == code, (arguments, done)
        assert "Traceback" not in done.stdout + done.stderr
        return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


@pytest.fixture
def json_site(site: Path) -> Path:
    """Return a folder with the package of the page."""
    (name, module) = re.findall(r'^(\w+) = "(\w+)"$', published("toml").partition("entry-points")[2], re.MULTILINE)[0]
    distribution(site, name, module, published("python"))
    return site


# ------------------------------------------------------------------------------------------------ found
def test_it_is_listed(json_site: Path, run: Run) -> None:
    (line,) = [line for line in run.apart("formats").out.splitlines() if line.startswith("json ")]
    assert "JSON: lists of numbers" in line
    (row,) = [row for row in json.loads(run("formats", "--json").out) if row["name"] == "json"]
    assert row["description"] == "JSON: lists of numbers"
    assert row["reads"] == "a .weights.json file"
    assert row["suffixes"] == [".weights.json"]
    assert (row["writes"], row["needs"], row["install"]) == (True, [], "")


def test_it_is_found_by_content_suffix_and_name(json_site: Path, run: Run) -> None:
    Path("in.anything").write_text(JSON)
    run.apart("encode", "in.anything", "-o", "x.nnr", "--lossless")
    run.apart("decode", "x.nnr", "-o", "out.weights.json")
    assert Path("out.weights.json").read_text() == JSON
    run("encode", "in.anything", "--format", "json", "-o", "named.nnr", "--lossless")
    assert Path("named.nnr").read_bytes() == Path("x.nnr").read_bytes()
    run("decode", "x.nnr", "-o", "out", "--format", "json")
    assert Path("out").read_text() == JSON
    run("encode", "m.npz", "--format", "json", "-o", "no.nnr", code=3)
    run("decode", "x.nnr", "-o", "back.npz")
    assert {name: array.tolist() for name, array in np.load("back.npz").items()} == {
        name: array.tolist() for name, array in TENSORS.items()
    }


def test_it_reads_standard_input(json_site: Path, run: Run) -> None:
    run.apart("encode", "-", "-o", "x.nnr", "--lossless", input=JSON)
    run("decode", "x.nnr", "-o", "out.weights.json")
    assert Path("out.weights.json").read_text() == JSON


def test_losses_are_reported(json_site: Path, run: Run) -> None:
    nnr.save(nnr.Model(TENSORS, metadata={"by": "somebody"}), "m.safetensors")
    run("encode", "m.safetensors", "-o", "x.nnr", "--lossless")
    assert "nnr: warning: JSON keeps the tensors only\n" in run("decode", "x.nnr", "-o", "x.weights.json").err


@pytest.mark.parametrize(
    "text",
    [
        '{"weights": 1}',
        '{"weights": {"w": "x"}}',
        '{"weights": {"w": [[1], [2, 3]]}}',
        '{"weights": {',
        '{"weights": 1' * 9,
    ],
)
def test_its_errors_are_ours(text: str, json_site: Path, run: Run) -> None:
    Path("bad").write_text(text)
    assert run("encode", "bad", "-o", "x.nnr", code=3).err.startswith("nnr: error: bad: not weights as JSON: ")


# ------------------------------------------------------------------------------------------------ not in our way
TRACE = "import pathlib; pathlib.Path('imported').touch()\n"


def test_ours_are_asked_first(site: Path, run: Run) -> None:
    """A format that accepts every file and extension is not imported if a built-in format matches."""
    greedy = MODULE.replace('(".odd",)', '(".npz", ".safetensors")').replace("return False", "return True")
    distribution(site, "odd", "odd_format", TRACE + greedy)
    run.apart("encode", "m.npz", "-o", "x.nnr")
    run.apart("decode", "x.nnr", "-o", "x.npz")
    run.apart("decode", "x.nnr", "-o", "x.safetensors")
    for command in (["--help"], ["--version"], ["ls", "m.nnr"], ["inspect", "m.nnr"], ["verify", "m.nnr"]):
        run.apart(*command)
    assert not Path("imported").exists()
    assert Path("x.npz").read_bytes()[:2] == b"PK"
    run.apart("encode", "unknown", "-o", "y.nnr", code=70)
    assert Path("imported").exists()


@pytest.mark.parametrize("name", ["npz", "nnef", "onnx"])
def test_names_of_ours_are_not_taken(name: str, site: Path, run: Run) -> None:
    distribution(site, name, "odd_format", TRACE + MODULE.replace('"odd"', f'"{name}"'))
    listed = run("formats").out
    run("encode", "unknown", "-o", "y.nnr", code=3)
    run("decode", "m.nnr", "-o", "x.odd", code=2)
    if name == "npz":
        run("decode", "m.nnr", "-o", "x", "--format", name)
        assert Path("x").read_bytes()[:2] == b"PK"
    assert not Path("imported").exists()
    assert "an odd format" not in listed


#: Ways to break formats, and the messages.
BROKEN = {
    "no module": ("", "ModuleNotFoundError"),
    "import error": ("import nothing_of_this_name\n", "nothing_of_this_name"),
    "exception": ("raise RuntimeError('one\\ntwo \\x1b[31m')\n", "RuntimeError: one"),
    "exit": ("import sys\nsys.exit(3)\n", "SystemExit"),
    "syntax": ("def f(:\n", "SyntaxError"),
    "no NAME": (MODULE.replace("NAME,", "NOTHING,"), "NAME"),
    "no SUFFIXES": (MODULE.replace("SUFFIXES", "NOTHING"), "SUFFIXES"),
    "no READS": (MODULE.replace("READS", "NOTHING"), "READS"),
    "another NAME": (MODULE.replace('"odd"', '"npz"'), "NAME"),
    "a NAME that is none": (MODULE.replace('"odd"', "7"), "NAME"),
    "SUFFIXES that are a string": (MODULE.replace('(".odd",)', '".odd"'), "SUFFIXES"),
    "SUFFIXES that are numbers": (MODULE.replace('(".odd",)', "(1, 2)"), "SUFFIXES"),
    "SUFFIXES that are empty": (MODULE.replace('(".odd",)', '("",)'), "SUFFIXES"),
    "SUFFIXES without a dot": (MODULE.replace('(".odd",)', '("odd",)'), "SUFFIXES"),
    "nothing at all": ("\n", "NAME"),
    "neither": (MODULE.replace("def load", "def nothing").replace("def save", "def none"), "load"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_one_breaks_nothing(kind: str, site: Path, run: Run) -> None:
    source, message = BROKEN[kind]
    distribution(site, "odd", "odd_format", source)
    if not source:
        (site / "odd_format.py").unlink()
    # If a built-in format matches, there is no message.
    for arguments in (["encode", "m.npz", "-o", "x.nnr"], ["decode", "m.nnr", "-o", "x.safetensors"], ["ls", "m.nnr"]):
        assert "warning" not in run(*arguments).err
    told = [line for line in (run("formats").out + run("formats").err).splitlines() if "odd" in line]
    assert len(told) >= 1
    assert any(message in line for line in told), told
    # Otherwise one line warns, and the error is the usual one.
    for arguments, code, last in (
        (["encode", "unknown", "-o", "y.nnr"], 3, "not a model of a supported format"),
        (["decode", "m.nnr", "-o", "x.unknown"], 2, "no writable format has the file extension '.unknown'"),
    ):
        warning, *rest = run(*arguments, code=code).err.splitlines()
        assert warning.startswith("nnr: warning: cannot load format 'odd' from 'odd_format': ")
        assert message in warning
        assert warning.isprintable()
        assert last in " ".join(rest)
        assert not any(line.startswith("nnr: warning") for line in rest)
    line = run("encode", "m.npz", "--format", "odd", "-o", "z.nnr", code=3).err
    assert line.count("\n") == 1
    assert line.startswith("nnr: error: ")
    assert message in line


@pytest.mark.parametrize("error", ["RuntimeError('a\\nb')", "SystemExit(9)", "KeyError('k')", "MemoryError()"])
def test_one_that_fails_when_it_looks_breaks_nothing(error: str, site: Path, run: Run) -> None:
    distribution(site, "odd", "odd_format", MODULE.replace("return False", f"raise {error}"))
    distribution(site, "json", "nnr_json", published("python"))
    Path("in").write_text(JSON)
    run("encode", "in", "-o", "x.nnr")  # whichever of the two is tried first
    assert Path("x.nnr").exists()
    warning, last = run("encode", "unknown", "-o", "y.nnr", code=3).err.splitlines()
    assert warning.startswith(f"nnr: warning: format 'odd' is skipped: {error.partition('(')[0]}")
    assert "not a model of a supported format" in last


def test_an_unreadable_file_is_an_error_of_the_file(site: Path, run: Run) -> None:
    """``recognise`` may raise OSError."""
    distribution(site, "odd", "odd_format", MODULE.replace("return False", "return open('nowhere')"))
    assert run("encode", "unknown", "-o", "x.nnr", code=5).err == "nnr: error: nowhere: No such file or directory\n"


@pytest.mark.parametrize("function", ["owns", "wiring"])
def test_one_that_fails_on_a_topology_breaks_nothing(function: str, site: Path, run: Run) -> None:
    graph = """
TOPOLOGY = ""
def owns(topology):
    return True
def wiring(topology):
    return None
"""
    model = nnr.Model(TENSORS, Topology("", b"of no known kind"), [Block("w", bias="b")])
    Path("x.nnr").write_bytes(nnr.encode(model, block=True))
    failing = re.sub(rf"(def {function}\(topology\):\n    ).*", r"\1raise RuntimeError('no')", graph)
    distribution(site, "odd", "odd_format", MODULE + failing)
    for arguments in (["ls", "x.nnr"], ["decode", "x.nnr", "-o", "x.npz"]):
        formats._wiring_by.cache_clear()  # as in a separate process
        assert "RuntimeError: no" in run(*arguments).err
    assert np.load("x.npz")["w"].shape == (2, 2)


def test_a_format_without_endings_has_a_default_output(site: Path, run: Run) -> None:
    distribution(site, "odd", "odd_format", MODULE.replace('(".odd",)', "()"))
    run("decode", "m.nnr", "--to", "odd")
    assert Path("m").read_bytes() == b"odd"
