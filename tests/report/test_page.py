"""The report as a page: well-formed, self-contained, and safe for all tensor names."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import nnr_codec as nnr

from .support import HOSTILE, model, report

VOID = {"meta", "input", "wbr"}


class Checked(HTMLParser):
    """Elements of a page, each of which must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element of SVG without content."""
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        """Record the end of an element."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Record text in an element."""
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element of one kind."""
        return [attributes for name, attributes in self.seen if name == tag]


@pytest.fixture(scope="module")
def page() -> str:
    """Return the page of the model with every way to code a tensor."""
    return report(model())[0].to_html()


def test_well_formed(page: str) -> None:
    checked = Checked(page)
    tensors = len(model().tensors)
    assert [tag for tag, _ in checked.seen].count("tr") == tensors + 1
    ids = [attributes["id"] for attributes in checked.all("tr") if "id" in attributes]
    assert ids == [f"t{k}" for k in range(tensors)]
    assert {attributes["href"] for attributes in checked.all("a")} <= {f"#{name}" for name in ids}
    assert len(checked.all("circle")) >= tensors - 4


def test_accessible(page: str) -> None:
    checked = Checked(page)
    assert checked.all("html") == [{"lang": "en"}]
    assert {"caption", "title", "main", "h1", "label"} <= {tag for tag, _ in checked.seen}
    assert all(attributes["scope"] in ("col", "row") for attributes in checked.all("th"))
    assert all("aria-label" in attributes for attributes in checked.all("svg"))
    cells = len(checked.all("th")) - len(model().tensors)
    for row in re.findall(r"<tr id=.*?</tr>", page):
        assert row.count("<td") + row.count("<th") == cells


def test_nothing_comes_from_elsewhere(page: str) -> None:
    checked = Checked(page)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "image", "use"} & {
        t for t, _ in checked.seen
    }
    attributes = {name for _, found in checked.seen for name in found}
    assert not {"src", "srcset", "action", "data", "background", "xlink:href"} & attributes
    assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|//[a-z]|url\(|@import|@font-face", page)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = checked.all("meta")[1]["content"]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_hostile_names() -> None:
    source = {name: np.random.default_rng(1).normal(0, 1, (9, 9)).astype(np.float32) for name in HOSTILE}
    source |= {f"{name} tied": source[name] for name in HOSTILE}
    made, _ = report(source, rules=[nnr.Rule(HOSTILE[1], qp=-30)])
    made.source = HOSTILE[1]
    checked = Checked(made.to_html())
    assert len(checked.all("script")) == 1
    assert len(checked.all("h1")) == len(checked.all("table")) == 1
    assert not checked.all("img")
    texts = [text for tag, text in checked.texts if tag == "bdi"]
    printed = [name.encode("unicode_escape").decode() if not name.isprintable() else name for name in HOSTILE]
    assert {printed[k] for k in range(4)} <= set(texts)
    assert r"\u202ertl\u202c \x1b[31m\x07 two\nlines" in texts
    assert all(c.isprintable() or c == "\n" for _, text in checked.texts for c in text)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"w": np.zeros((0, 2), np.float32)},
        {"w": np.zeros((4, 4), np.float32)},
        {"w": np.array(1.5, np.float32)},
        {"w": np.full((2, 2), np.nan, np.float32)},
        {"w": np.full((20, 20), 2.0**-140, np.float32)},
        {"w": np.eye(50, dtype=np.float32) * 3e38},
    ],
    ids=["none", "empty", "zeros", "scalar", "nan", "subnormal", "huge"],
)
@pytest.mark.parametrize("exact", [None, True, False])
def test_odd_models(tensors: dict[str, np.ndarray], exact: bool | None) -> None:
    try:
        made, _ = report(tensors, exact=exact)
    except nnr.EncodeError:
        pytest.skip("cannot be quantized") if exact is False else pytest.fail("cannot be encoded")
    assert "nan" not in Checked(made.to_html()).seen
    assert made.to_json()
