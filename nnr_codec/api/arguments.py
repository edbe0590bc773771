"""Types of arguments."""

from __future__ import annotations

import os
from typing import BinaryIO

from ..model import Model, Topology

Target = str | os.PathLike[str] | BinaryIO
Given = Topology | Model | str | os.PathLike[str]
Source = Target | bytes | bytearray | memoryview
