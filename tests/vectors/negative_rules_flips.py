"""NNR-NEG-501, NNR-ACC-501 on: what a cut or an inverted bit makes of a bitstream, and nothing else breaks."""

from __future__ import annotations

from nnr_codec.constants import NNR_CPT_LS, NNR_DFL, NNR_PT_RAW_FLOAT, NNR_TPL_PYT

from ..builder import ndu
from .bits import f4
from .case import Content, acceptable
from .negative_units import HEAD, bad
from .stream import Stream

bad("NNR-NEG-501", "a start unit alone", "6.2.3", "ElementError", None, HEAD[:4], requirements="single-mps")


# verify warns of it (parameter-types).
@acceptable(
    "NNR-ACC-501", "local scaling is named by a unit that is no block", "6.4.3.7", "compressed_parameter_types=2"
)
def scaling_without_a_block() -> Content:
    s = Stream()
    s.str_()
    s.parameters()
    s.raw(ndu("w", [2], kind=NNR_PT_RAW_FLOAT, compressed_parameter_types=NNR_CPT_LS), [1, 2])
    return s.gives({"w": f4(1, 2)})


# A single zero stands for a topology that is kept apart (errata N9), and is no zlib stream.
@acceptable(
    "NNR-ACC-502",
    "a zero in place of a topology, which is said to be deflated",
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
