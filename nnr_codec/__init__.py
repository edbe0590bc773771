"""Encoder and decoder for ISO/IEC 15938-17:2024, compression of neural networks (NNR, also called NNC).

>>> import numpy as np, nnr_codec as nnr
>>> data = nnr.encode({"w": np.linspace(-1, 1, 600, dtype="f4").reshape(20, 30)})
>>> nnr.decode(data)["w"].shape
(20, 30)

Clause numbers refer to ISO/IEC 15938-17:2024 throughout the package. Syntax elements and derived variables carry the
standard's names; variables that it writes in CamelCase are written in snake_case.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from types import SimpleNamespace
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if os.path.exists(f"{__path__[0]}/cabac_ext/kernel.pyx") and not any(
    os.path.exists(f"{__path__[0]}/cabac_ext/kernel{suffix}") for suffix in EXTENSION_SUFFIXES
):  # a clone that shadows the installed package
    raise ImportError(
        f"the nnr_codec in {__path__[0]} is not built; run `pip install -e .` in that clone, "
        "or start Python in another folder"
    )

if TYPE_CHECKING:
    from .public import *  # noqa: F403
else:  # hidden from type checkers, which would accept any name because of __getattr__

    def _public() -> dict[str, str]:
        """Return the module of each public name: run the import statements of public.py without importing anything.

        Unlike a stub or source text, the code of a module also exists in zipped and frozen installations, and tools
        that freeze programs follow its imports.
        """
        found = {}

        def note(module, _globals, _locals, names, _level):
            found.update(dict.fromkeys(names, module))
            return SimpleNamespace(**dict.fromkeys(names))

        name = f"{__name__}.public"
        exec(find_spec(name).loader.get_code(name), {"__builtins__": {"__import__": note}})
        return found

    _MODULE_OF = _public()
    __all__ = [*_MODULE_OF, "__version__"]  # noqa: PLE0604  # names that __getattr__ provides

    def __getattr__(name):
        """Import a public name when it is first used, so that ``nnr --version`` does not wait for numpy."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
        return value

    def __dir__():
        return sorted(__all__)
