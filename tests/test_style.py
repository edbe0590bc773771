"""Style of prose: docstrings, comments, pages and CLI help avoid phrases that were hard to read."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import click
import pytest
from nnr_cli.main import cli

ROOT = Path(__file__).parents[1]
#: Phrases that no text uses, and phrases that only docstrings and comments avoid, where a noun is shorter.
PHRASES = (
    r"what (becomes|became|came) of|that there are|how many (of \w+ )?there are|mended|of ours|belongs? together"
    r"|(is|are) told( of)?|tells? of|as asked|nobody|somebody|whole or not at all|has to end|and nothing else"
    r"|(takes?|stands? in) the place of|what makes one \w+ of another|lies? beyond|excludes? each other"
)
NOUNS = r"how (many|much)|what (it|they|is|was|are)|asked (for|of)|told|tells?|comes? out"
QUESTION = re.compile(r"(What|Which|How|Whether)\b")
#: Files with docstrings and comments: Python, Cython and C.
PYTHON, CYTHON, C = (".py", ".pyi"), (".pyx", ".pxd", ".pxi"), (".h",)


def docstrings(text: str) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]


def comments(text: str) -> str:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return " ".join(token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT)


def found(text: str, phrases: str) -> list[str]:
    return [match[0] for match in re.finditer(rf"\b(?:{phrases})\b", " ".join(text.split()), re.IGNORECASE)]


def defects(path: Path) -> list[str]:
    """Return the phrases and first words of a module or page that are not permitted."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        return found(text, PHRASES)
    if path.suffix in PYTHON:
        texts = [*docstrings(text), comments(text)]
    elif path.suffix in CYTHON:
        texts = [*re.findall(r'"""(.*?)"""', text, re.DOTALL), " ".join(re.findall(r"#:? (.*)", text))]
    else:
        texts = re.findall(r"/\* (.*?) \*/", text, re.DOTALL)
    phrases = [phrase for one in texts for phrase in found(one, f"{PHRASES}|{NOUNS}")]
    return phrases + [one.splitlines()[0] for one in texts if QUESTION.match(one)]


def test_prose_avoids_phrases() -> None:
    files = [ROOT / "README.md", ROOT / "examples" / "README.md", *(ROOT / "docs").rglob("*.md")]
    for folder, suffix in product(("nnr_codec", "cli", "examples"), PYTHON + CYTHON + C):
        files += (ROOT / folder).rglob(f"*{suffix}")
    checked = {path.relative_to(ROOT).as_posix(): path for path in files}
    assert not {n: wrong for n, path in checked.items() if (wrong := defects(path))}


def helps(command: click.Command) -> Iterator[str]:
    yield from (str(text) for text in (command.help, command.short_help, command.epilog))
    yield from (str(getattr(option, "help", "")) for option in command.params)
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        yield from helps(one)


def test_help_avoids_phrases() -> None:
    assert not [phrase for text in helps(cli) for phrase in found(text, PHRASES)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", '"""Whether it is."""'),
        ("a.py", "#: What becomes\n#: of it.\n"),
        ("a.py", "x = 1  # which is told\n"),
        ("a.pyx", "cdef int x  # which is told\n"),
        ("a.pxi", '"""Whether it is."""'),
        ("a.h", "/* Whether it is. */"),
    ],
)
def test_defects_are_found(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert defects(tmp_path / name)
