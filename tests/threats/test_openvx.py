"""T36, T40: folders for OpenVX, whose names and program derive from a bitstream."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.errors import FormatError
from nnr_codec.formats import FormatWarning
from nnr_codec.model import Array, Model, Topology

from ..formats.openvx import compiles

#: Names that lead elsewhere, are devices, or differ only in case.
NAMES = ["../x", "/etc/x", "a/../../x", "..\\x", "C:x", "aux", "con.x", "a", "A", "ﬁ", "fi", "x.", " x", "."]
#: Texts that would end a string, a comment or a line of C, or are a trigraph.
CODE = ['"; int main(void){} "', "*/ int x; /*", "a\nint x;", "\\", "??/", "%s%n%n", "\x01", '\\"', "\r", "\u2028"]
ONE = np.ones(2, "f4")


def saved(tensors: dict[str, Array], path: Path, topology: Topology | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        nnr.save(Model(tensors, topology), path)


def test_t36_names_lead_nowhere(tmp_path: Path) -> None:
    saved(dict.fromkeys(NAMES, ONE), tmp_path / "x.openvx")
    files = sorted(path.name for path in (tmp_path / "x.openvx").rglob("*"))
    assert len(files) == len(NAMES) + 3
    assert all(re.fullmatch(r"\d\d-[A-Za-z0-9_-]*\.q78|client\.[ch]|tensors\.json", name) for name in files)
    assert len({name.casefold() for name in files}) == len(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.openvx"]


def test_t36_names_that_are_alike(tmp_path: Path) -> None:
    saved(dict.fromkeys(["a/b", "a_b", "A_B", "a.b"], ONE), tmp_path / "x.openvx")
    assert len(list((tmp_path / "x.openvx").glob("*.q78"))) == 4


def test_t36_long_names(tmp_path: Path) -> None:
    saved({"n" * 4000: ONE}, tmp_path / "x.openvx")
    assert len(list((tmp_path / "x.openvx").glob("*.q78"))) == 1


def test_links_are_replaced_and_never_followed(tmp_path: Path) -> None:
    """This applies to a link to the folder, and to links in the replaced folder."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "tensors.json").write_text("mine")
    target = tmp_path / "x.openvx"
    os.symlink(elsewhere, target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FormatWarning)
        nnr.save({"w": ONE}, target, overwrite=True)
        assert not target.is_symlink()
        (target / "0-w.q78").unlink()
        os.symlink(elsewhere / "tensors.json", target / "0-w.q78")
        nnr.save({"w": ONE}, target, overwrite=True)
    assert not (target / "0-w.q78").is_symlink()
    assert (elsewhere / "tensors.json").read_text() == "mine"


def test_names_are_no_code(tmp_path: Path) -> None:
    saved(dict.fromkeys(CODE, ONE), tmp_path / "x.openvx")
    compiles(tmp_path / "x.openvx")
    text = (tmp_path / "x.openvx" / "client.c").read_bytes()
    assert text.isascii()
    assert b"\r" not in text
    assert b"??" not in text


@pytest.mark.parametrize("name", ["int", "main", "nnr_tensors", "NULL", "signals", "_Pragma"])
def test_identifiers_of_graphs_are_none_of_ours(name: str, tmp_path: Path) -> None:
    text = f"version 1.0; graph {name}(x) -> ({name}) {{ x = external(shape = [1, 2]); {name} = relu(x); }}"
    saved({}, tmp_path / "x.openvx", Topology("nnef", text.encode()))
    compiles(tmp_path / "x.openvx")


def test_numbers_that_c_does_not_have(tmp_path: Path) -> None:
    text = f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [{10**30}, 2]); y = relu(x); }}"
    saved({}, tmp_path / "x.openvx", Topology("nnef", text.encode()))
    compiles(tmp_path / "x.openvx")
    assert str(10**30) not in (tmp_path / "x.openvx" / "client.c").read_text()


@pytest.mark.parametrize(("stride", "padding"), [(10**31, (10**30, 0)), (1, (-1, -1))])
def test_paddings_that_c_does_not_have(stride: int, padding: tuple[int, int], tmp_path: Path) -> None:
    body = f"size = [1, 1, 1, 1], stride = [1, 1, {stride}, 1], padding = [(0, 0), (0, 0), {padding}, (0, 0)]"
    text = f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [1, 1, 9, 2]); y = max_pool(relu(x), {body}); }}"
    saved({}, tmp_path / "x.openvx", Topology("nnef", text.encode()))
    assert "pooling(graph" not in (tmp_path / "x.openvx" / "client.c").read_text()


def test_dilations_that_c_does_not_have(tmp_path: Path) -> None:
    body = f"w = variable(shape = [1, 1, 1, 1], label = 'w'); y = conv(x, w, dilation = [{10**30}, 1]);"
    text = f"version 1.0; graph g(x) -> (y) {{ x = external(shape = [1, 1, 9, 2]); {body} }}"
    saved({"w": np.ones((1, 1, 1, 1))}, tmp_path / "x.openvx", Topology("nnef", text.encode()))
    assert "convolution(graph" not in (tmp_path / "x.openvx" / "client.c").read_text()


def test_views_stay_in_their_signal(tmp_path: Path) -> None:
    """Negative padding would make a view that is larger than the whole."""
    text = "version 1.0; graph g(x) -> (y) { x = external(shape = [1, 2, 9, 9]); y = pad(relu(x), padding = PADS); }"
    for pads, views in ("[(0, 0), (0, 0), (1, 0), (0, 2)]", 1), ("[(0, 0), (0, 0), (-1, 0), (0, -2)]", 0):
        target = tmp_path / f"{views}.openvx"
        saved({}, target, Topology("nnef", text.replace("PADS", pads).encode()))
        signals = re.findall(r"VX_TYPE_INT16, 8, vx_\w+, vx_\w+, (-?\d+), ", (target / "client.c").read_text())
        assert len([whole for whole in signals if whole != "-1"]) == views


def test_values_are_not_changed_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"values that Q7\.8 cannot represent"):
        saved({"w": np.array([0.1])}, tmp_path / "x.openvx")
