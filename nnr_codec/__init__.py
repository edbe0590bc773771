"""An encoder and decoder for ISO/IEC 15938-17:2024, the compression of neural networks (NNR, also called NNC).

>>> import numpy as np, nnr_codec as nnr
>>> data = nnr.encode({"w": np.linspace(-1, 1, 600, dtype="f4").reshape(20, 30)})
>>> nnr.decode(data)["w"].shape
(20, 30)

Clause numbers refer to ISO/IEC 15938-17:2024 throughout the package. Syntax elements and derived variables carry the
standard's names; variables that it writes in CamelCase are written in snake_case.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *  # noqa: F403

__version__ = "0.1.0"


def _public() -> dict[str, str]:
    """Return the module of each public name.

    Runs the statements of public.py with an ``__import__`` that only takes notes. Type checkers, editors and freezers
    read the same statements, and a module's code is there where neither its source nor a stub is: in zipped and
    frozen installations.
    """
    found: dict[str, str] = {}

    def note(module: str, _globals: object, _locals: object, names: tuple[str, ...], _level: int) -> SimpleNamespace:
        found.update(dict.fromkeys(names, module))
        return SimpleNamespace(**dict.fromkeys(names))

    loader: Any = getattr(find_spec(f"{__name__}.public"), "loader", None)
    exec(loader.get_code(f"{__name__}.public"), {"__builtins__": {"__import__": note}})
    return found


_MODULE_OF = _public()

__all__ = [  # noqa: PLE0604  # names that __getattr__ provides
    *_MODULE_OF,
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``nnr --version`` need not wait for numpy."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
