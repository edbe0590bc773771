"""Imports only point to lower layers, and importing the package is cheap."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "nnr_codec"

#: The layer of each module or subpackage of nnr_codec; a new one needs a place here. The package itself is "api".
LAYERS = {
    "errors": 0,
    "rules": 0,
    "constants": 0,
    "cancellation": 0,
    "subprocess_command": 0,
    "dtypes": 0,
    "limits": 1,
    "model": 1,
    "parallel": 1,
    "compare": 1,
    "config": 1,
    "reduction_steps": 1,
    "files": 1,
    "urls": 1,
    "syntax": 1,
    "cabac_ext": 1,
    "tensor": 1,
    "sideinfo": 1,
    "topology": 1,
    "bitstream": 2,
    "folders": 2,
    "encoder": 3,
    "decoder": 3,
    "federated": 3,
    "conformance": 3,
    "bitstream_difference": 3,
    "integrations": 4,
    "report": 3,
    "runtime": 3,
    "formats": 2,
    "store": 4,
    "sync": 4,
    "topics": 4,
    "api": 4,
    "public": 4,
    "safetensors": 4,
    "torch": 4,
    "nnr_cli": 4,
    "__main__": 5,
}

#: Permitted imports within a layer.
SIDEWAYS = {
    "errors": {"rules"},
    "dtypes": {"errors"},
    "syntax": {"limits"},
    "cabac_ext": {"limits"},
    "tensor": {"limits", "model", "cabac_ext"},
    "sideinfo": {"limits", "model", "tensor", "cabac_ext"},
    "files": {"limits"},
    "bitstream": {"formats"},
    "folders": {"formats"},
    "config": {"limits", "model", "reduction_steps"},
    "encoder": {"decoder"},  # the encoder keeps the decoder's reconstruction; never the reverse
    "federated": {"encoder", "decoder", "conformance", "report"},
    "integrations": {"api"},
    "compare": {"model"},
    "topology": {"model"},
    "conformance": {"decoder"},
    "bitstream_difference": {"decoder"},
    "report": {"encoder", "decoder"},
    "store": {"api"},
    "sync": {"api", "torch"},
    "api": {"topics", "public"},
    "public": {"api", "topics"},
    "torch": {"api", "integrations"},
    "safetensors": {"api", "torch"},
    "nnr_cli": {"api", "integrations", "store", "topics"},
}

#: Modules whose imports are restricted beyond the layers.
ONLY = {
    "formats": {"model", "errors", "dtypes", "limits", "files", "topology"},
    "topology": {"model", "errors"},
}

#: Packages that only the command line uses.
COMMAND_LINE = {"click", "rich", "nnr_cli"}

#: Optional packages, each for one module of nnr_codec.formats.
OPTIONAL = {"torch": "pytorch", "h5py": "keras", "tensorflow": "tensorflow", "nnef": "nnef"}


def module_of(path: Path) -> list[str]:
    """Return the parts of a module's name, including the package."""
    folder = ["nnr_codec", *path.relative_to(PACKAGE).parts] if path.is_relative_to(PACKAGE) else ["nnr_cli", path.name]
    return [*folder[:-1], *([] if path.stem == "__init__" else [path.stem])]


def unit_of(name: list[str]) -> str:
    """Return the entry of `LAYERS` to which a module of this project belongs."""
    return name[0] if name[0] == "nnr_cli" else name[1] if len(name) > 1 else "api"


def imports_of(source: str, module: list[str], is_package: bool) -> Iterator[list[str]]:
    """Return the absolute names of all imports of a source, including imports in functions and for type checking."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level + is_package] if node.level else []
            base = base + (node.module or "").split(".") if node.module else base
            yield from ([*base, alias.name] for alias in node.names)


def python_of(path: Path) -> str:
    """Return the source; of Cython only its import statements."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return source
    found = re.findall(r"^[ \t]*((?:from [\w.]+ )?c?import [\w., ]+)$", source, re.MULTILINE)
    return "\n".join(re.sub(r"\bcimport\b", "import", line) for line in found)


def all_imports() -> list[tuple[list[str], list[str]]]:
    """Yield importing module and imported name, for the whole project."""
    paths = [path for suffix in ("py", "pyx", "pxd") for path in PACKAGE.rglob(f"*.{suffix}")]
    out = []
    for path in sorted([*paths, *(ROOT / "cli").rglob("*.py")]):
        module = module_of(path)
        out += [(module, name) for name in imports_of(python_of(path), module, path.stem == "__init__")]
    return out


def violation(module: list[str], name: list[str]) -> str:
    """Return the rule that the import of ``name`` in ``module`` breaks; empty if none."""
    importer, top = unit_of(module), name[0]
    if top in COMMAND_LINE and importer not in ("nnr_cli", "__main__"):
        return "the library knows nothing of the command line"
    if top in OPTIONAL and module[:3] != ["nnr_codec", "formats", OPTIONAL[top]]:
        return f"{top} belongs to nnr_codec.formats.{OPTIONAL[top]}"
    if top not in ("nnr_codec", "nnr_cli"):
        return ""
    imported = unit_of(name)
    if imported not in LAYERS and len(name) == 2:  # a name of the package itself
        imported = "api"
    if imported == importer:
        return ""
    if importer in ONLY and imported not in ONLY[importer]:
        return f"{importer} may import {sorted(ONLY[importer])} only"
    if LAYERS[imported] > LAYERS[importer]:
        return "the import points up"
    if LAYERS[imported] == LAYERS[importer] and imported not in SIDEWAYS.get(importer, ()):
        return "the import points sideways"
    return ""


def test_every_module_has_a_layer() -> None:
    units = {unit_of(module_of(path)) for path in PACKAGE.rglob("*.py")}
    assert units <= set(LAYERS)


def test_imports_point_down() -> None:
    broken = [
        f"{'.'.join(module)} imports {'.'.join(name)}: {rule}"
        for module, name in all_imports()
        if (rule := violation(module, name))
    ]
    assert not broken, "\n".join(broken)


def test_the_imports_are_found() -> None:
    found = {(".".join(module), ".".join(name)) for module, name in all_imports()}
    assert ("nnr_codec.syntax.session", "nnr_codec.constants.NNR_NDU") in found
    assert ("nnr_codec.syntax", "nnr_codec.syntax.session.Session") in found
    assert ("nnr_codec.syntax.bitio", "bitarray.bitarray") in found


@pytest.mark.parametrize(
    ("module", "source", "legal"),
    [
        ("syntax.coder", "from ..errors import ElementError", True),
        ("syntax.coder", "from ..limits import Limits", True),
        ("syntax.coder", "from . import bitio", True),
        ("syntax.coder", "from .. import cabac_ext", False),
        ("syntax.coder", "from ..cabac_ext.kernel import Decoder", False),
        ("cabac_ext.payload", "import nnr_codec.syntax", False),
        ("errors", "from .limits import Limits", False),
        ("bitstream.units", "from ..syntax import Reader", True),
        ("bitstream.units", "from ..decoder.state import State", False),
        ("decoder.decode", "from ..encoder import plan", False),
        ("decoder.decode", "def f():\n    from nnr_codec.encoder.plan import Plan", False),
        ("encoder.encode", "from ..decoder.state import State", True),
        ("encoder.encode", "from ..formats import nnef", True),
        ("federated.client", "from ..encoder import encode", True),
        ("conformance.requirements", "from ..encoder import encode", False),
        ("formats.nnef.graph", "from ...model import Model", True),
        ("formats.nnef.graph", "from ...constants import NNR_TPL_NNEF", False),
        ("formats.nnef.graph", "from ...syntax import Reader", False),
        ("formats.nnef.files", "import nnef", True),
        ("formats.nnef", "from nnef import parse_string", True),
        ("formats.onnx", "import onnx.numpy_helper", True),
        ("formats.onnx", "import torch", False),
        ("formats.pytorch", "import torch", True),
        ("decoder.decode", "import torch", False),
        ("api", "from .decoder import decode", True),
        ("decoder.decode", "from .. import __version__", False),
        ("api", "import click", False),
        ("api", "import rich.table", False),
        ("api", "import nnr_cli", False),
    ],
)
def test_the_rules(module: str, source: str, legal: bool) -> None:
    name = ["nnr_codec", *module.split(".")]
    (imported,) = imports_of(source, name, is_package=False)
    assert (violation(name, imported) == "") is legal


def test_the_command_line_may_import_what_it_needs() -> None:
    for source in ("import click", "from rich.table import Table", "from nnr_codec import errors, decode"):
        for imported in imports_of(source, ["nnr_cli", "main"], is_package=False):
            assert violation(["nnr_cli", "main"], imported) == ""


def test_importing_the_package_is_cheap() -> None:
    heavy = ["click", "rich", "scipy", "onnx", "openvino", "nnr_cli", *OPTIONAL]
    program = f"import sys, nnr_codec; print(*sorted(set({heavy}) & set(sys.modules)))"
    search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_an_unbuilt_clone_says_how_to_build_it(tmp_path: Path) -> None:
    for name in ("__init__.py", "cabac_ext/kernel.pyx"):
        copy = tmp_path / "nnr_codec" / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes((PACKAGE / name).read_bytes())
    command = [sys.executable, "-c", "import nnr_codec"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith(
        "is not built; run `pip install -e .` in that clone, or start Python in another folder"
    )
