"""Development programs of this repository, including the page generators; not part of the package.

The programs use the ``nnr_codec`` of the checkout in ``PYTHONPATH`` or, without it, the one beside this folder.
Vectors, models and tests always come from the checkout of this folder.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

#: The checkout of this folder.
ROOT = Path(__file__).resolve().parents[1]

if os.environ.get("PYTHONPATH") and sys.path[0] in ("", str(ROOT)):  # python -m puts the working directory here
    _first = sys.path.pop(0)
    importlib.import_module("nnr_codec")
    sys.path.insert(0, _first)
