"""NNR-3GP: combinations of the tools that 3GPP S4-260200 requires of decoders.

A whole model: profile 1, NNR_PT_BLOCK with local scaling and batch normalization, dependent quantization or a codebook,
shift parameter ids. Updates: parents, skipped rows, predictive residuals, history and temporal contexts, scan orders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from nnr_codec.cabac_ext.kernel import TensorSide
from nnr_codec.constants import NNR_PT_BLOCK

from ..builder import ndu, update_ndu
from .arithmetic import chosen, dependent, floats
from .block import BI, BN, CODED, LISTED, LS, QP, described, scaled
from .block import block as one_block
from .case import Content, Tensor, valid
from .stream import Stream, side
from .update import DISTINCT, DISTINCT_DQ, rounds
from .wired import BATCH, FILTER, NORMALIZATION, NORMALIZED, graph, variable
from .wired import start as with_graph

FULL = "6.4.3.7 7.3.5 8.3.8 8.3.9"
CONTEXTS = "10.2.1.4 10.2.1.6 10.3.4.2"
TOOLS = "NNR_PT_BLOCK compressed_parameter_types=6"
#: Shift parameter ids that distinguish all contexts of a model, with and without states.
PLAIN = {"sig": {0: 1, 1: 2, 2: 6}, "sign": {0: 8, 1: 2, 2: 1}, "gtx": {k: (k + 3) % 9 for k in range(20)}}
STATES = PLAIN | {"sig": {k: (4 * k + 1) % 9 for k in range(24)}}
#: Parts of a block without decomposition.
PARTS = CODED[:-2]
#: A codebook of nine entries with zero in the middle.
BOOK = ([-60, -25, -9, -3, 0, 2, 8, 30, 71], 4)


# ------------------------------------------------------------------------------------------------ whole models
def sides(sets: Mapping[str, Any]) -> dict[str, TensorSide]:
    """Return shift parameter ids for each part of a block."""
    return dict.fromkeys(PARTS, side(**sets))


for number, (types, dims, density) in enumerate(
    [(LS | BN, [4, 3, 2, 2], 2), (LS | BN, [6, 5], 4), (LS | BN | BI, [5, 3], 0)], 1
):

    @valid(
        f"NNR-3GP-{number:03}",
        f"{len(dims)}-dimensional weight with {described(types)}, dependent quantization, shift parameter ids",
        f"{FULL} {CONTEXTS}",
        f"NNR_PT_BLOCK compressed_parameter_types={int(types)} dq_flag shift_parameter_ids mps_qp_density={density}",
    )
    def quantized(types: int = types, dims: list[int] = dims, density: int = density) -> Content:
        return one_block(types, dims, dq_flag=1, density=density, sides=sides(STATES))


@valid(
    "NNR-3GP-004",
    f"weight with {described(LS | BN)}, a codebook for the weight, shift parameter ids",
    f"{FULL} {CONTEXTS} 7.3.6",
    f"{TOOLS} codebook shift_parameter_ids",
)
def with_codebook() -> Content:
    left = PLAIN | {"gtx": {k: (k + 3) % 9 for k in range(8)}}  # a codebook limits the number of contexts
    given = sides(PLAIN) | {"weight": side(**left)}
    return one_block(LS | BN, [6, 5], books=(BOOK,), sides=given)


@valid(
    "NNR-3GP-005",
    f"weight with {described(LS | BN)}, each shift parameter id in turn",
    f"{FULL} 10.2.1.6 10.2.1.7 10.3.2.2",
    f"{TOOLS} dq_flag shift_parameter_ids",
)
def every_id() -> Content:
    s, tensors, raw = Stream().start(), dict[str, Tensor](), dict[str, Tensor]()
    for k in range(9):
        conv = Convolution(f"conv{k}", [3, 4], seed=k)
        ids = side(sig=dict.fromkeys(range(24), k), sign=dict.fromkeys(range(3), k), gtx=dict.fromkeys(range(20), k))
        more = conv.unit(s, dq=1, sides=dict.fromkeys(PARTS, ids))
        tensors |= more[0]
        raw |= more[1]
    return s.gives(tensors, raw=raw)


class Convolution:
    """A weight with local scaling and batch normalization, and the state of its updates.

    Parameters
    ----------
    name : str
        Prefix of the names of its parts.
    dims : sequence of int
        Dimensions of the weight.
    names : mapping of str to str, optional
        Ids by role.
    seed : int
        Determines the levels.
    parameter : int
        parameter_id.
    """

    def __init__(
        self,
        name: str,
        dims: Sequence[int],
        *,
        names: Mapping[str, str] | None = None,
        seed: int = 0,
        parameter: int = 0,
    ) -> None:
        self.dims, self.seed, self.parameter = list(dims), seed, parameter
        self.coded = [role for role in CODED if role in ("ls", "beta", "gamma", "mean", "var", "weight")]
        self.names = names or {role: f"{name}.{role}" for role in self.coded}
        self.last: list[Tensor] = []
        self.any_sig: list[Tensor] = []

    def unit(
        self,
        s: Stream,
        depth: int | None = None,
        *,
        dq: int = 0,
        scan: int = 0,
        temporal: int = 0,
        device: int = 0,
        sides: Mapping[str, TensorSide],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Add a unit; return its decoded tensors and the Rec* variables. A base model has depth 0 or None."""
        levels = {role: self._levels(role, depth or 0) for role in self.coded}
        if sides["weight"].row_skip_enabled_flag:
            levels["weight"][[0, 2]] = 0
        header = self._header(depth, device, dq_flag=dq, scan_order=scan)
        reference: dict[str, Any] = {}
        if depth:
            header.temporal_context_modeling_flag = temporal
            if self.last:
                reference = {"any_sig": self.any_sig} | ({"co_loc": self.last} if temporal else {})
        qp = [QP[role] for role in self.coded]
        s.ndu(header, *levels.values(), qp=qp, sides=[sides[role] for role in self.coded], **reference)
        scans = {role: scan if role == "weight" else 0 for role in self.coded}
        params = {role: dependent(each, scans[role]) if dq else each for role, each in levels.items()}
        if depth:
            self.last = [param.astype(np.int32) for param in params.values()]
            now = [param != 0 for param in self.last]
            self.any_sig = [a | b for a, b in zip(self.any_sig, now, strict=True)] if self.any_sig else now
        raw = {self.names[role]: floats(param, QP[role]) for role, param in params.items()}
        return self._scaled(raw), raw

    def _levels(self, role: str, depth: int) -> Tensor:
        shape = self.dims if role == "weight" else self.dims[:1]
        if role == "ls":  # positive, because the chosen integers have no minus zero
            return np.array([1 + (k + depth) % 5 for k in range(self.dims[0])], np.int32)
        return chosen(shape, 4, 31 * self.seed + 7 * depth + self.coded.index(role) + 1)

    def _header(self, depth: int | None, device: int, **elements: int) -> Any:
        ids = [self.names[role] for role in LISTED if role in self.coded]
        options = {"kind": NNR_PT_BLOCK, "compressed_parameter_types": LS | BN} | elements
        if depth is None:
            return ndu(ids, self.dims, **options)
        header = update_ndu("", self.dims, depth, parameter=self.parameter, device=device, **options)
        del header.topology_elem_id
        header.nnr_multiple_topology_elements_present_flag, header.topology_elem_id_list = 1, ids
        return header

    def _scaled(self, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors with local scaling multiplied into the weight."""
        tensors = {name: tensor for name, tensor in raw.items() if name != self.names["ls"]}
        weight = self.names["weight"]
        values = [Fraction(float(value)) for value in raw[weight].flat]
        tensors[weight] = scaled(values, self.dims, raw[self.names["ls"]], "<f4")
        return tensors


#: A convolution with batch normalization, and a convolution of its output.
NETWORK = graph(
    *(FILTER, *NORMALIZATION, variable("reader", 2, 3, 1, 1)),
    "features = conv(input, filter)",
    f"normalized = {NORMALIZED}",
    "output = conv(normalized, reader)",
)
ROLES = {"weight": "filter", "ls": "filter_scaling", **BATCH}


def network(s: Stream) -> Content:
    """Write both layers; the vectors of the first layer get the shapes that the graph declares."""
    ids = side(**STATES)
    conv = Convolution("", [3, 2, 1, 2], names=ROLES)
    tensors, raw = conv.unit(s, dq=1, sides=dict.fromkeys(PARTS, ids))
    levels = chosen([2, 3, 1, 1], 5, 8)
    s.ndu(ndu("reader", levels.shape, dq_flag=1), levels, qp=-6, sides=[ids])
    reader = {"reader": floats(dependent(levels), -6)}
    shaped = {name: tensor if name == "filter" else tensor.reshape(1, 3) for name, tensor in tensors.items()}
    return s.gives(shaped | reader, raw=raw | reader, topology=NETWORK)


@valid(
    "NNR-3GP-006",
    "a model of two layers and its NNEF graph",
    f"{FULL} 6.2.3 A.4",
    f"{TOOLS} dq_flag NNR_TPL_NNEF NNR_PT_FLOAT",
)
def whole_model() -> Content:
    return network(with_graph(NETWORK))


@valid(
    "NNR-3GP-007",
    "a model of two layers and its separately stored NNEF graph",
    f"{FULL} 6.4.4.3",
    f"{TOOLS} dq_flag topology_carriage_flag=0 NNR_PT_FLOAT",
    topology=NETWORK,
)
def graph_apart() -> Content:
    return network(with_graph(b""))


# ------------------------------------------------------------------------------------------------ updates
INCREMENTAL = "6.3.3.7 6.4.3.7 10.2.1.4 10.2.1.6 10.3.4.2.2"
UPDATES = "mps_parent_signalling_enabled_flag row_skip_enabled_flag hist_dep_sig_prob_enabled_flag"
HISTORY = DISTINCT | {"sig": {**DISTINCT["sig"], 40: 8}}
HISTORY_DQ = DISTINCT_DQ | {"sig": {k: (4 * k + 1) % 9 for k in range(48)}}


@valid(
    "NNR-3GP-011",
    "three updates as residuals, history and temporal contexts, skipped rows",
    f"{INCREMENTAL} 6.4.4.3 9.2.4",
    f"{UPDATES} temporal_context_modeling_flag nnr_pre_flag",
)
def residuals() -> list[Content]:
    return rounds([0, 1, 2, 3], temporal=1, history=1, pre=1, skip=1, sides=side(history=1, skip=1, **HISTORY))


for number, scan in enumerate((1, 2, 3, 4), 12):

    @valid(
        f"NNR-3GP-{number:03}",
        f"three updates as residuals, history and temporal contexts, skipped rows, entry points of scan order {scan}",
        f"{INCREMENTAL} 4.12 6.4.4.3 9.2.4",
        f"{UPDATES} temporal_context_modeling_flag nnr_pre_flag scan_order={scan} cabac_offset_list",
    )
    def scanned(scan: int = scan) -> list[Content]:
        ids = side(history=1, skip=1, **HISTORY)
        return rounds([1, 2, 3], dims=[(4 << scan) + 2, 5], temporal=1, history=1, pre=1, skip=1, scan=scan, sides=ids)


@valid(
    "NNR-3GP-016",
    "three updates with dependent quantization, history and temporal contexts, skipped rows, entry points with states",
    f"{INCREMENTAL} 4.12",
    f"{UPDATES} temporal_context_modeling_flag dq_flag scan_order=1 dq_state_list",
)
def with_states() -> list[Content]:
    ids = side(history=1, skip=1, **HISTORY_DQ)
    return rounds([1, 2, 3], dims=[17, 10], temporal=1, history=1, skip=1, scan=1, dq=1, sides=ids)


def of_vectors(skip: int = 0, dq: int = 0) -> dict[str, TensorSide]:
    """Return shift parameter ids for a block of an update; only the weight has row and history flags."""
    given = dict.fromkeys(PARTS, side(**(DISTINCT_DQ if dq else DISTINCT)))
    return given | {"weight": side(history=1, skip=skip, **(HISTORY_DQ if dq else HISTORY))}


def chain(dims: Sequence[int], *, dq: int = 0, scan: int = 0) -> list[Content]:
    """Return a base model with one block, and three updates."""
    conv, made = Convolution("conv", dims, parameter=3), []
    for depth in range(4):
        s = Stream().start(parent=int(depth > 0))
        given = of_vectors(1, dq) if depth else dict.fromkeys(PARTS, side(**(STATES if dq else PLAIN)))
        tensors, raw = conv.unit(s, depth, dq=dq, scan=scan, temporal=int(depth > 0), sides=given)
        made.append(s.gives(tensors, raw=raw))
    return made


@valid(
    "NNR-3GP-017",
    "updates of a weight with local scaling and batch normalization, history and temporal contexts, skipped rows",
    f"{INCREMENTAL} {FULL}",
    f"{UPDATES} {TOOLS} temporal_context_modeling_flag",
)
def of_a_block() -> list[Content]:
    return chain([4, 5])


@valid(
    "NNR-3GP-018",
    "updates like NNR-3GP-017, with dependent quantization and entry points",
    f"{INCREMENTAL} {FULL} 4.12",
    f"{UPDATES} {TOOLS} temporal_context_modeling_flag dq_flag scan_order=1 cabac_offset_list",
)
def of_a_block_scanned() -> list[Content]:
    return chain([10, 9], dq=1, scan=1)


@valid(
    "NNR-3GP-019",
    "two clients update one block, each with its own contexts",
    f"{INCREMENTAL} {FULL}",
    f"{UPDATES} {TOOLS} temporal_context_modeling_flag device_id",
)
def clients() -> list[Content]:
    chains = {device: Convolution("conv", [3, 4], seed=device, parameter=3) for device in (1, 2)}
    made = []
    for depth in (1, 2):
        for device, conv in chains.items():
            s = Stream().start(parent=1)
            tensors, raw = conv.unit(s, depth, temporal=1, device=device, sides=of_vectors())
            made.append(s.gives(tensors, raw=raw))
    return made


@valid(
    "NNR-3GP-020",
    "an update of a model with one changed layer; the other layers have no unit",
    f"{INCREMENTAL} 6.2.3",
    f"{UPDATES} {TOOLS} NNR_TPL_NNEF put_node_depth",
)
def one_layer() -> list[Content]:
    made, before = [network(with_graph(NETWORK))], None
    for depth in (1, 2):
        s, levels = Stream().start(parent=1), chosen([2, 3, 1, 1], 3, depth)
        reference: dict[str, Any] = {} if before is None else {"co_loc": [before], "any_sig": [before != 0]}
        header = update_ndu("reader", levels.shape, depth, parameter=6, temporal_context_modeling_flag=1)
        s.ndu(header, levels, qp=-6, sides=[side(history=1, **HISTORY)], **reference)
        before = levels
        made.append(s.gives({"reader": floats(levels, -6)}))
    return made
