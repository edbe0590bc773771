"""The page in a real browser: Chromium, without a window."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from .support import HOSTILE, model, report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.medium,
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed (Debian: apt-get install chromium)"),
]

#: Appended to a page: sorts by the column of bytes, then filters, and writes the visible names into the title.
CLICKS = """
const shown = () => [...document.querySelector("table").tBodies[0].rows].filter((row) => !row.hidden)
  .map((row) => row.cells[0].textContent);
const button = [...document.querySelectorAll("thead button")].find((one) => one.textContent === "bytes");
const results = [shown()];
button.click(); results.push(shown());
results.push(button.closest("th").getAttribute("aria-sort"));
button.click(); results.push(shown());
const [input, select] = [document.querySelector(".controls input"), document.querySelector(".controls select")];
input.value = "TIED"; input.dispatchEvent(new Event("input")); results.push(shown());
results.push(document.querySelector("output").textContent);
input.value = ""; input.dispatchEvent(new Event("input"));
select.value = "raw"; select.dispatchEvent(new Event("change")); results.push(shown());
document.title = JSON.stringify(results);
"""


def browse(page: Path, *options: str) -> tuple[str, list[str]]:
    """Open a page; return standard output and the text of the console."""
    assert BROWSER
    done = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            f"--user-data-dir={page.parent / 'profile'}",
            "--enable-logging=stderr",
            "--virtual-time-budget=3000",
            "--hide-scrollbars",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    errors = done.stderr.decode(errors="replace").splitlines()
    return done.stdout.decode(), [line for line in errors if ":CONSOLE:" in line]


def written(folder: Path, text: str) -> Path:
    """Write a page to a file."""
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


def scripted(folder: Path, text: str, script: str) -> Path:
    """Write a page with another script, which its policy forbids, to a file."""
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="[^"]*">', text)
    assert policy
    return written(folder, text.replace(policy[0], "").replace("</body>", f"<script>{script}</script></body>"))


def lines_of(picture: Path) -> np.ndarray:
    """Return the filtered lines of a PNG, shape (height, bytes)."""
    data, at, parts = picture.read_bytes(), 8, []
    height = int.from_bytes(data[20:24], "big")
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            parts.append(data[at + 8 : at + 8 + size])
        at += size + 12
    return np.frombuffer(zlib.decompress(b"".join(parts)), np.uint8).reshape(height, -1)


def test_renders(tmp_path: Path) -> None:
    page = written(tmp_path, report(model())[0].to_html())
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert len(re.findall(r'<tr id="t\d+"', dom)) == len(model().tensors)
    assert dom.count("<button") > 8  # the script has run, because the policy contains its digest
    assert '<div class="controls">' in dom


@pytest.mark.parametrize("more", ["", "<img src='http://127.0.0.1:9/x.png'>"], ids=["page", "with an image"])
def test_asks_for_nothing(tmp_path: Path, more: str) -> None:
    script = "addEventListener('load', () => { document.title = performance.getEntriesByType('resource').length })"
    page = scripted(tmp_path, report(model())[0].to_html().replace("<main>", f"<main>{more}"), script)
    assert f"<title>{int(bool(more))}</title>" in browse(page, "--dump-dom")[0]


def test_picture(tmp_path: Path) -> None:
    page, picture = written(tmp_path, report(model())[0].to_html()), tmp_path / "page.png"
    _, console = browse(page, f"--screenshot={picture}", "--window-size=1200,1600")
    assert console == []
    lines = lines_of(picture)
    assert len(lines) == 1600
    drawn = lines[:, 1:].any(axis=1).mean()  # a line equal to the one above it is all zeros
    assert drawn > 0.3


@pytest.mark.parametrize(("scheme", "background"), [("light", "rgb(252, 252, 251)"), ("dark", "rgb(17, 19, 23)")])
def test_light_and_dark(tmp_path: Path, scheme: str, background: str) -> None:
    page = scripted(
        tmp_path, report(model())[0].to_html(), "document.title = getComputedStyle(document.body).backgroundColor"
    )
    dom, _ = browse(page, "--dump-dom", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}")
    assert f"<title>{background}</title>" in dom


def test_sorting_and_filtering(tmp_path: Path) -> None:
    made, _ = report(model())
    page = scripted(tmp_path, made.to_html(), CLICKS)
    dom, console = browse(page, "--dump-dom")
    assert console == []
    title = re.search(r"<title>(.*?)</title>", dom)
    assert title
    before, descending, order, ascending, tied, told, raw = json.loads(title[1].replace("&amp;", "&"))
    names = list(made.tensors)
    nbytes = {name: one.unit_bytes for name, one in made.tensors.items()}
    assert before == names
    assert descending == sorted(names, key=lambda name: -nbytes[name])
    assert order == "descending"
    assert ascending == sorted(names, key=lambda name: nbytes[name])
    assert tied == ["tied"]
    assert told == f"1 of {len(names)} tensors"
    rows = json.loads(made.to_json())["tensors"]
    assert sorted(raw) == sorted(row["name"] for row in rows if row["coding"] == "raw")


def test_hostile_names_do_nothing(tmp_path: Path) -> None:
    made, _ = report({name: np.random.default_rng(1).normal(0, 1, (9, 9)).astype(np.float32) for name in HOSTILE})
    made.source = HOSTILE[0]
    page = written(tmp_path, made.to_html())
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert "<title>owned</title>" not in dom
    assert dom.count("<script") == 1
    assert "<img" not in dom
    assert 'id="owned"' not in dom


def test_a_thousand_tensors(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    source = {f"layer{k}.weight": rng.normal(0, 1, (6, 6)).astype(np.float32) for k in range(1000)}
    page = written(tmp_path, report(source)[0].to_html())
    dom, console = browse(page, "--dump-dom")
    assert console == []
    assert len(re.findall(r'<tr id="t\d+"', dom)) == 1000
    assert page.stat().st_size < 4_000_000
