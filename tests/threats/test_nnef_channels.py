"""T38: the cost of following channels in NNEF graphs."""

from __future__ import annotations

import pytest

from nnr_codec import formats
from nnr_codec.errors import LimitError
from nnr_codec.formats import nnef
from nnr_codec.model import Topology
from nnr_codec.topology.tracks import Tracks

from ..formats.test_nnef_channels import graph
from .support import memory

MOST = 1 << 22  # longer extents are not followed


def topology(body: str, extra: str = "") -> Topology:
    return Topology("nnef", graph(f"{body} y = conv(conv(x, w), r);", extra=extra))


def chain(first: str, more: str, count: int) -> str:
    """Return ``v0`` and so on, each computed from the one before."""
    return f"v0 = {first}; " + " ".join(f"v{k + 1} = {more.format(f'v{k}')};" for k in range(count))


@pytest.mark.medium
@pytest.mark.parametrize(
    ("body", "extra"),
    [
        (chain("conv(x, w)", "concat([{0}, {0}], axis = 1)", 24), ""),
        (chain("conv(x, w)", "pad({}, padding = [(0, 0), (0, 1000000), (0, 0), (0, 0)])", 12), ""),
        ("", "".join(f"v{k} = external(shape = [{MOST}]);" for k in range(12))),
        ("", "".join(f"v{k} = variable(shape = [{MOST}], label = 'v{k}');" for k in range(12))),
        ("".join(f"v{k} = reshape(x, shape = [{MOST}]);" for k in range(12)), ""),
        ("".join(f"u{k} = e + h;" for k in range(40)), "".join(f"{k} = external(shape = [1000000]);" for k in "eh")),
    ],
    ids=["concat", "pad", "external", "variable", "reshape", "sum"],
)
def test_t38_channels_that_grow(body: str, extra: str) -> None:
    """A few bytes each declare any number of channels."""
    with memory() as used, pytest.raises(LimitError, match="tracing the channels"):
        nnef.channels(topology(body, extra), {})
    assert used.peak < 500 << 20
    assert formats.channels(topology(body, extra)) == ()


def test_t38_more_and_more_dimensions() -> None:
    read = Topology("nnef", graph(chain("conv(x, w)", "unsqueeze({}, axes = [4])", 40) + "y = conv(v40, r);"))
    assert nnef.channels(read, {}) == ()


def test_t38_arrays_of_arrays() -> None:
    """Each array contains the one before twice."""
    vendor = "fragment vendor(x: tensor<scalar>) -> (y: tensor<scalar>);"
    body = chain("[conv(x, w)]", "[{0}, {0}]", 18) + "y = vendor(v18);"
    walked = 0

    def count(tracks: Tracks, ids: object) -> None:
        nonlocal walked
        walked += 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tracks, "fix", count)
        nnef.channels(Topology("nnef", graph(body, vendor)), {})
    assert walked < 1000
