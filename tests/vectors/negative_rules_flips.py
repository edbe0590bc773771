"""NNR-NEG-501, NNR-ACC-501 on: rules that only a truncated bitstream or an inverted bit breaks."""

from __future__ import annotations

from nnr_codec.constants import NNR_CPT_LS, NNR_DFL, NNR_PT_RAW_FLOAT, NNR_TPL_PYT

from ..builder import ndu
from .bits import f4
from .case import Content, acceptable
from .negative_units import HEAD, bad
from .stream import Stream

bad("NNR-NEG-501", "only a start unit", "6.2.3", "ElementError", None, HEAD[:4], requirements="single-mps")


# verify warns (parameter-types).
@acceptable(
    "NNR-ACC-501",
    "compressed_parameter_types has local scaling in a unit that is not a block",
    "6.4.3.7",
    "compressed_parameter_types=2",
)
def scaling_without_a_block() -> Content:
    s = Stream()
    s.str_()
    s.parameters()
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT, compressed_parameter_types=NNR_CPT_LS), [1, 2])
    return s.gives({"w": f4(1, 2)})


# A single zero byte denotes a topology that is stored separately (errata N9), and is not a zlib stream.
@acceptable(
    "NNR-ACC-502",
    "a separately stored topology (a single zero byte) with compression format NNR_DFL",
    "6.4.3.5",
    "NNR_TPL_PYT NNR_DFL",
    requirements="deflate",
)
def zero_that_is_not_deflated() -> Content:
    s = Stream()
    s.str_()
    s.parameters()
    s.topology(b"\0", storage=NNR_TPL_PYT, compression=NNR_DFL)
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT), [1, 2])
    return s.gives({"w": f4(1, 2)})
