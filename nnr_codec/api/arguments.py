"""Types of function arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from ..model import Model, StatefulModule

Target = str | os.PathLike[str] | BinaryIO
Source = Target | bytes | bytearray | memoryview
#: A model, arrays or PyTorch tensors by name, a PyTorch module, or the path, content or open file of a model.
ModelSource = Model | Mapping[str, Any] | StatefulModule | Source
