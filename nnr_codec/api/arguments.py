"""Types of function arguments."""

from __future__ import annotations

import os
from typing import BinaryIO

Target = str | os.PathLike[str] | BinaryIO
Source = Target | bytes | bytearray | memoryview
