"""NNR-QNT-033 to 035: the fixed-point format Q7.8, multiples of 2**-8 in 16 bits."""

from __future__ import annotations

from nnr_codec.constants import NNR_QCB

from ..builder import codebook, ndu
from .arithmetic import floats, look_up
from .case import Content, valid
from .stream import Stream

#: Both ends of Q7.8 (-128 and 127.99609375), and numbers around 0 and 1.
LEVELS = [-32768, -32767, -257, -256, -1, 0, 1, 127, 128, 255, 256, 32766, 32767]


@valid(
    "NNR-QNT-033",
    "step size 2^-8 of Q7.8, both ends of the range, all densities",
    "7.3.3 7.3.6",
    "NNR_PT_FLOAT qp_value mps_qp_density NNR_LPS",
)
def ends() -> Content:
    s, values = Stream().start(density=0), {}
    for density in range(8):
        if density:
            s.lps(density, 0)
        for name, dims in (("matrix", [1, 13]), ("vector", [13])):
            levels = LEVELS[density:] + LEVELS[:density]
            s.ndu(ndu(f"{name}{density}", dims), levels, qp=-8 << density)
            values[f"{name}{density}"] = floats(levels, -8 << density, density).reshape(dims)
    return s.gives(values)


@valid("NNR-QNT-034", "step size 2^-8 of Q7.8, in profile 0", "7.2 7.3.3", "general_profile_idc=0 NNR_PT_FLOAT")
def base_profile() -> Content:
    s = Stream().start(0)
    s.ndu(ndu("w", [13]), LEVELS, qp=-32)
    return s.gives({"w": floats(LEVELS, -32)})


@valid(
    "NNR-QNT-035",
    "step size 2^-8 of Q7.8, with a codebook over the whole range",
    "6.4.3.7 7.3.6",
    "codebook_present_flag codebook_egk",
)
def with_codebook() -> Content:
    indices = [2, 0, -3, 3, 3, -3, 1, -1, 0, -2, 2]
    entries = [-32768, -257, -1, 0, 1, 256, 32767]
    s = Stream().start(methods=1 | NNR_QCB)
    s.ndu(ndu("w", [11], codebook_present_flag=1, codebook=codebook(entries, 3, egk=12)), indices, qp=-32)
    return s.gives({"w": floats(look_up(indices, entries, 3), -32)})
