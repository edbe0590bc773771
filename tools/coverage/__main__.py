"""Print docs/reference/coverage.md: ``python -m tools.coverage [FOLDER]``; the default folder is bitstream_vectors."""

from __future__ import annotations

import sys

from nnr_codec.conformance.cases import load_cases

from . import Matrix, page

print(page(Matrix(load_cases(sys.argv[1] if len(sys.argv) > 1 else "bitstream_vectors"))), end="")
