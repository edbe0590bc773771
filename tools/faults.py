"""Inject faults into copies of the package, and record the first test that fails: ``python -m tools.faults``.

Faults are found in the source, by kind:

``limit``
    a call of a method of limits or of a budget has no effect.
``check``
    a call of a function named ``check``, ``need`` or ``charge`` whose result is not used is removed.
``guard``
    the condition of an ``if`` that raises is false, or the iterable of a ``for`` that raises is empty.
``handler``
    an ``except`` that raises another exception catches nothing.
``arithmetic``
    in ``syntax``, ``decoder``, ``encoder`` and ``tensor``, a comparison includes or excludes equality, or an integer
    is one larger.
``kernel``
    the same in the compiled extensions, which are rebuilt for each fault.

A fault is named by its file, its function and its number in the function, so renamed variables do not change the name.
Each fault runs the facts of ``tools.snapshot`` about vectors and encodings (arithmetic and kernel only), then the test
files nearest to the changed module. Results are lines of JSON; a fault whose name is in the file is skipped.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import accumulate, groupby, takewhile
from pathlib import Path
from typing import NamedTuple

from . import ROOT

PACKAGES = {"nnr_codec": ROOT / "nnr_codec", "nnr_cli": ROOT / "cli"}
#: Packages whose comparisons and integers are changed.
ARITHMETIC = ("syntax", "decoder", "encoder", "tensor")
#: CPU time limit of one run in seconds; a run without a fault takes less than half of it.
SECONDS = 90
#: Address space limit of one run in bytes.
MEMORY = 6 << 30
#: Number of test files that run for one fault.
FILES = 8

SWAPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}
COMPILED = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}


class Fault(NamedTuple):
    """Replacement of ``old``, at index ``start`` in the source of ``file``, by ``new``."""

    name: str
    kind: str
    file: str
    start: int
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source with the fault."""
        assert source.startswith(self.old, self.start), self.name
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


#: Kinds of fault that one copy of the package has all at once; `tools.switch` activates one.
SWITCHED = ("limit", "check", "guard", "handler")


# ------------------------------------------------------------------------------------------------ faults of a file
def in_python(file: str, source: str) -> Iterator[Fault]:
    """Yield the faults of a module."""
    counts: dict[tuple[str, str], int] = {}
    lines = source.split("\n")
    starts = [0, *accumulate(len(line) + 1 for line in lines)]

    def place(line: int, column: int) -> int:
        """Return the index of a character; ast counts columns in bytes."""
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def fault(kind: str, function: str, node: ast.expr | ast.stmt, new: str) -> Fault:
        number = counts[kind, function] = counts.get((kind, function), 0) + 1
        start = place(node.lineno, node.col_offset)
        old = source[start : place(node.end_lineno or 0, node.end_col_offset or 0)]
        return Fault(f"{file}::{function}::{kind}-{number}", kind, file, start, old, new)

    def switched(kind: str, function: str, node: ast.expr) -> Fault:
        made = fault(kind, function, node, "")
        return made._replace(new=f"switch.{kind}({made.name!r}, {made.old})")

    def walk(node: ast.AST, function: str) -> Iterator[Fault]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        statement = node.value if isinstance(node, ast.Expr) else None
        if isinstance(statement, ast.Call) and not _is_limit(statement) and CHECKS.match(_last_name(statement.func)):
            yield switched("check", function, statement.func)
        if isinstance(node, ast.Call) and _is_limit(node):
            yield switched("limit", function, node.func)
        if isinstance(node, ast.If | ast.For) and _raises(node.body[-1]):
            yield switched("guard", function, node.test if isinstance(node, ast.If) else node.iter)
        if isinstance(node, ast.ExceptHandler) and node.type and _raises(node.body[-1], anew=True):
            yield switched("handler", function, node.type)
        if file.split("/")[1] in ARITHMETIC:
            if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in SWAPPED:
                swapped = ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)
                yield fault("arithmetic", function, node, f"({ast.unparse(swapped)})")
            if isinstance(node, ast.Constant) and type(node.value) is int:
                yield fault("arithmetic", function, node, f"{node.value + 1}")
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                        yield from walk(child, function)

    yield from walk(ast.parse(source), "")


CHECKS = re.compile("_*(check|need|charge)(_|$)")
#: Functions that never return.
RAISING = ("fail", "refuse", "_too_long")


def _last_name(node: ast.expr) -> str:
    """Return ``c`` of ``a.b.c``."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_limit(call: ast.Call) -> bool:
    """Return whether a method of limits or of a budget is called."""
    return isinstance(call.func, ast.Attribute) and _last_name(call.func.value).lstrip("_") in ("limits", "budget")


def _raises(node: ast.stmt, *, anew: bool = False) -> bool:
    """Return whether a statement raises; with ``anew``, whether it raises another exception than the caught one."""
    if isinstance(node, ast.Raise):
        return node.exc is not None or not anew
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _last_name(node.value.func) in RAISING


def with_switches(file: str, source: str, faults: list[Fault]) -> str:
    """Return the source of a file with switchable faults and the import or definition of the switch."""
    faults = [fault for fault in faults if fault.kind in SWITCHED]
    if not faults:
        return source
    lines = source.splitlines(keepends=True)
    if file.endswith(".py"):
        code = (node for node in ast.parse(source).body if not isinstance(node, ast.Expr))
        first = next(node.lineno for node in code if "__future__" not in ast.dump(node))
    else:
        first = next(number for number, line in enumerate(lines, 1) if not line.startswith("#"))
    pieces = [(sum(map(len, lines[: first - 1])), 2, 0, "import switch\n" if file.endswith(".py") else SWITCH)]
    for fault in faults:
        end = fault.start + len(fault.old)
        before, after = fault.new.split(fault.old, 1)
        pieces += [(fault.start, 1, -end, before), (end, 0, -fault.start, after)]
    for place, _, _, text in sorted(pieces, reverse=True):
        source = source[:place] + text + source[place:]
    return source


#: `switch.guard` in Cython.
SWITCH = '''cdef extern from *:
    """
    #ifndef NNR_SWITCH
    #define NNR_SWITCH
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    static int nnr_guard(const char *name, int refused) {
        const char *fault = refused ? getenv("NNR_FAULT") : NULL, *fired = refused ? getenv("NNR_FIRED") : NULL;
        FILE *file = fired && !(fault && !strcmp(fault, name)) ? fopen(fired, "a") : NULL;
        if (file) {
            fputs(name, file);
            fputc(10, file);
            fclose(file);
        }
        return refused && !(fault && !strcmp(fault, name));
    }
    #endif
    """
    bint guard "nnr_guard"(const char *name, bint refused) noexcept nogil

'''


def in_compiled(file: str, source: str) -> Iterator[Fault]:
    """Yield the faults of a Cython or C file, found line by line."""
    counts: dict[tuple[str, str], int] = {}
    function, start, is_text = "", 0, False
    lines = source.splitlines(keepends=True)

    def fault(kind: str, column: int, old: str, new: str = "") -> Fault:
        number = counts[kind, function] = counts.get((kind, function), 0) + 1
        name = f"{file}::{function}::{kind}-{number}"
        return Fault(name, kind, file, start + column, old, new or f'guard(b"{name}", {old})')

    for number, line in enumerate(lines, 1):
        code = re.split(r"#(?!define)|//|/\*", line)[0]
        quotes = line.count('"""')
        if is_text or quotes or line.lstrip().startswith("*"):
            is_text ^= quotes % 2 == 1
            code = ""
        if found := re.match(r"(?:\s*(?:cdef|cpdef|def)\b|static\b|\w+ \w)[^=]*?\b(\w+)\(", code):
            function = found[1]
        elif not re.match(r"\s*(#|\w*include|cdef enum|case)", code):
            if (found := _refusal(code, lines[number:])) and not file.endswith(".h"):
                yield fault("guard", found.start(1), found[1])
            for token in re.finditer(r'(?<= )(?:[<>]=?|[=!]=)(?= )|(?<![\w."\'])\d+(?![\w."\'])', code):
                yield fault("kernel", token.start(), token[0], COMPILED.get(token[0]) or str(int(token[0]) + 1))
        start += len(line)


def _refusal(code: str, following: list[str]) -> re.Match[str] | None:
    """Return the match of a Cython line; its first group is the condition of an error."""
    if found := re.match(r"\s*(?:return [A-Z_]+ if (?=.* else OK)|\S+invalid \|= )(.+?)(?: else OK)?\s*$", code):
        return found
    found = re.match(r"\s*(?:el)?if (?!Coder)(.+):\s*$", code)
    indent = len(code) - len(code.lstrip())
    last = ""
    for line in takewhile(lambda line: not line.strip() or re.match(rf" {{{indent + 1}}}", line), following):
        last = line if re.match(rf" {{{indent + 4}}}[^\s)]", line) else last
    return found if re.match(r"\s*(raise|t\.error = [A-Z]|return [A-Z]\w*$|self\._check\([A-Z])", last) else None


def source_of(file: str) -> Path:
    """Return the path of a file whose name begins with its package."""
    package, _, name = file.partition("/")
    return PACKAGES[package] / name


def every_fault() -> Iterator[Fault]:
    """Yield all faults of the packages, in the order of their files."""
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*")):
            file = f"{package}/{path.relative_to(folder).as_posix()}"
            if path.suffix == ".py":
                yield from in_python(file, path.read_text(encoding="utf-8"))
            elif path.suffix in (".pyx", ".pxi", ".pxd", ".h"):
                yield from in_compiled(file, path.read_text(encoding="utf-8"))


def sample(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Return up to ``count`` faults, evenly from each kind, in an order that depends only on the seed."""
    order = random.Random(seed)
    kinds = [order.sample(group, len(group)) for kind in KINDS if (group := [f for f in faults if f.kind == kind])]
    longest = max(map(len, kinds), default=0)
    return [group[place] for place in range(longest) for group in kinds if place < len(group)][:count]


KINDS = (*SWITCHED, "arithmetic", "kernel")


# ------------------------------------------------------------------------------------------------ runs
def nearest(file: str, tests: list[str]) -> list[str]:
    """Return the test files whose paths, and then texts, have most in common with the path of a module."""
    words = {*re.split(r"[/_.]", file), "threats"} - {"py", "nnr", "codec", "init", ""}
    stem = Path(file.removesuffix("/__init__.py")).stem

    def distance(test: str) -> tuple[int, int, str]:
        text = (ROOT / test).read_text(encoding="utf-8")
        return -len(words & {*re.split(r"[/_.]", test)}), -text.count(stem), test

    return sorted(tests, key=distance)[:FILES]


class Copy:
    """Copy of the packages in a folder with one active fault at a time; Python faults are activated by the switch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, package in PACKAGES.items():
            shutil.copytree(package, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.c"))
        shutil.copy(ROOT / "tools" / "switch.py", folder)
        self.switch(".py")
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        self.environment |= {
            "PYTHONPATH": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.base = folder / "snapshot.json"

    def switch(self, *suffixes: str) -> None:
        """Write switches into files; compiled files must be built afterwards."""
        for file, faults in groupby(every_fault(), lambda fault: fault.file):
            if file.endswith(suffixes):
                source = source_of(file).read_text(encoding="utf-8")
                (self.folder / file).write_text(with_switches(file, source, [*faults]), encoding="utf-8")

    def run(self, *command: str) -> tuple[int, str]:
        """Return exit code and output of a Python command that uses the copy."""

        def limited() -> None:
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

        done = subprocess.run(
            [
                sys.executable,
                "-P",
                "-c",
                f"import sys; sys.path[1:1] = [{str(self.folder)!r}, {str(ROOT)!r}]\n{RUN}",
                *command,
            ],
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=limited,
            check=False,
        )
        return done.returncode, done.stdout.decode(errors="replace")

    def snapshot(self) -> str:
        """Return the first fact that differs from the facts without a fault; the first call records these."""
        if not self.base.exists():
            code, said = self.run("tools.snapshot", str(self.base), "--only", *SECTIONS)
            assert code == 0, said
            return ""
        code, said = self.run("tools.snapshot", "--compare", str(self.base), "--only", *SECTIONS)
        lines = (
            [line for line in said.splitlines() if " != " in line] or said.splitlines()[-1:] or [f"exit code {code}"]
        )
        return f"snapshot: {lines[0][:160]}" if code else ""

    def tests(self, files: list[str]) -> str:
        """Return the first test that fails; empty if all pass."""
        options = ("-v", "-x", "--noconftest", "--tb=no", "-p", "no:cacheprovider", "-m", "not slow and not heavy")
        code, said = self.run("pytest", *options, "-o", "addopts=--import-mode=importlib", *files)
        assert code != USAGE_ERROR, said
        if code in (0, 5):
            return ""
        failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", said, re.MULTILINE)
        begun = re.findall(r"^(tests/\S+)", said, re.MULTILINE)
        return failed[-1] if failed else f"exit code {code} after {begun[-1] if begun else 'nothing'}"

    def build(self, file: str) -> bool:
        """Build the extensions that contain a compiled file; return whether the build succeeds."""
        wanted = [
            (module.name, module.sources[0], module.include_dirs)
            for module in runpy.run_path(str(ROOT / "setup.py"))["EXTENSIONS"]
            if file in (*module.sources, *module.depends)
        ]
        code, _ = self.run("-build", str(self.folder), json.dumps(wanted))
        return bool(wanted) and code == 0

    def first_failure(self, fault: Fault, tests: list[str]) -> str | None:
        """Return the test that detects a fault: empty if none does, None if the fault cannot be built."""
        path, is_compiled = self.folder / fault.file, not fault.file.endswith(".py")
        before = path.read_text(encoding="utf-8")
        kept = {each: each.read_bytes() for each in path.parent.glob("*.so")} if is_compiled else {}
        self.environment["NNR_FAULT"] = fault.name
        source = source_of(fault.file).read_text(encoding="utf-8")
        changed = with_switches(fault.file, source, [fault]) if fault.kind in SWITCHED else fault.applied(source)
        path.write_text(changed, encoding="utf-8")
        try:
            if is_compiled and not self.build(fault.file):
                return None
            found = self.snapshot() if fault.kind in WITH_SNAPSHOT else ""
            return found or self.tests(nearest(fault.file, tests))
        finally:
            path.write_text(before, encoding="utf-8")
            for each, data in kept.items():
                each.unlink()  # a loaded extension is never overwritten
                each.write_bytes(data)


#: Exit code of pytest.
USAGE_ERROR = 4
#: Kinds of fault that first compare the facts of `SECTIONS`.
WITH_SNAPSHOT = ("arithmetic", "kernel")
SECTIONS = ("vectors", "encodes", "formats")
#: Program of a process of `Copy.run`.
RUN = """
import os, runpy
if sys.argv[1] == "-build":
    import json
    from Cython.Build import cythonize
    from setuptools import Extension, setup
    os.chdir(sys.argv[2])
    made = [Extension(name, [source], include_dirs=folders, extra_compile_args=["-O0", "-ffp-contract=off"])
            for name, source, folders in json.loads(sys.argv[3])]
    setup(name="copy", packages=[], script_args=["-q", "build_ext", "--inplace"],
          ext_modules=cythonize(made, quiet=True, force=True))
else:
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=__doc__.partition("\n")[0])
    parser.add_argument("results", nargs="?", type=Path, help="file to which results are appended as lines of JSON")
    parser.add_argument("--list", action="store_true", help="print the names of the faults")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=[*KINDS])
    parser.add_argument("--only", default="*", metavar="GLOB", help="names of faults, such as 'nnr_codec/decoder/*'")
    parser.add_argument("--sample", type=int, default=sys.maxsize, metavar="N", help="number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=900, help="CPU seconds after which no fault is started")
    parser.add_argument("--survivors", action="store_true", help="retry faults that no test detected")
    parser.add_argument("--tests", nargs="+", default=["tests/*/test_*.py"], help="patterns of test files")
    arguments = parser.parse_args()
    faults = [
        fault for fault in every_fault() if fault.kind in arguments.kind and fnmatchcase(fault.name, arguments.only)
    ]
    chosen = sample(faults, arguments.sample, arguments.seed)
    if arguments.list or not arguments.results:
        for fault in chosen:
            print(fault.name)
        return
    slow = ("clients", "integrations", "peer", "test_guards", "test_browser", "_torch", "_models", "_any", "_large")
    found = (path.relative_to(ROOT).as_posix() for pattern in arguments.tests for path in sorted(ROOT.glob(pattern)))
    tests = [name for name in found if not any(word in name for word in slow)]
    run(chosen, arguments.results, tests, arguments.seconds, arguments.survivors)


def run(faults: list[Fault], results: Path, tests: list[str], seconds: float, survivors: bool) -> None:
    """Try faults and append their results to a file."""
    known = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {line["fault"] for line in known if not survivors or line["found_by"] != ""}

    def used() -> float:
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    with tempfile.TemporaryDirectory() as folder, open(results, "a", encoding="utf-8") as file:
        copy = Copy(Path(folder))
        faults = [fault for fault in faults if fault.name not in done]
        if any(fault.kind in WITH_SNAPSHOT for fault in faults):
            copy.snapshot()
        for fault in faults:
            if used() > seconds:
                break
            before = used()
            found_by = copy.first_failure(fault, tests)
            line = {"fault": fault.name, "kind": fault.kind, "found_by": found_by, "seconds": round(used() - before, 1)}
            print(json.dumps(line), file=file, flush=True)
            print(f"{fault.name}: {found_by or ('survives' if found_by == '' else 'not built')}", flush=True)


if __name__ == "__main__":
    main()
