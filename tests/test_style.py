"""Style of prose: docstrings, comments, documentation and CLI help contain no phrases of the earlier idiom."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest

from cli.main import cli

ROOT = Path(__file__).parents[1]
#: Files that are not rewritten yet. The list only becomes shorter.
EXEMPT = (
    "nnr_codec/encoder/*",
)
#: Phrases that are never used, with the usual wording.
PHRASES = {
    r"what (becomes|became|came) of": "name the result",
    r"(is|are) told( of)?": "is stated, is passed",
    r"tells? of": "states, shows",
    r"that there (are|is)\b": "omit",
    r"mended": "fixed",
    r"those of ours|of ours": "name the object",
    r"nobody|somebody": "name the reader, the caller or the thread",
    r"(takes|stands in) the place of": "replaces",
    r"whole or not at all": "atomic",
    r"(has|have) to end": "must end",
    r"and nothing else": "only",
    r"what makes one \w+ of another": "the difference between",
    r"what lies beyond|lies beyond": "exceeds",
    r"exclude each other": "cannot be combined",
    r"how many (of them )?there are": "the number of",
    r"as asked": "as requested",
    r"strangers": "untrusted input",
}
BAD = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), re.IGNORECASE)
QUESTION = re.compile(r"(What|Which|How|Whether)\b")


def sources() -> list[Path]:
    return sorted(path for folder in ("nnr_codec", "cli") for path in (ROOT / folder).rglob("*.py"))


def pages() -> list[Path]:
    return sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def docstrings(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def comments(text: str) -> Iterator[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return (token.string for token in tokens if token.type == tokenize.COMMENT)


def found(texts: Iterator[str] | list[str]) -> list[str]:
    return [match[0] for text in texts for match in BAD.finditer(" ".join(text.replace("#", " ").split()))]


def test_x() -> None:
    import json
    out={}
    for p in [*sources(),*pages()]:
        t=p.read_text()
        if p.suffix==".py":
            docs=list(docstrings(t)); f=found([*docs,*comments(t)])
            f+= ["Q:"+d[:60] for d in docs if QUESTION.match(d)]
        else: f=found([t])
        if f: out[str(p.relative_to(ROOT))]=f
    for k,v in out.items():print(k,len(v),v[:6])
