"""Random requests for the encoder: models, networks and updates, and options for them.

Tensors are small, because a slow decoder reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.bitstream.aggregate import write_aggregate
from nnr_codec.bitstream.unit_index import has_index
from nnr_codec.bitstream.units import UnitReader
from nnr_codec.config import PRESETS
from nnr_codec.constants import NNR_AGG, NNR_AGG_SLF, NNR_LPS, NNR_NDU
from nnr_codec.dtypes import STORED_TYPES
from nnr_codec.model import Array, Block, Model, Topology

from ..arrays import KINDS, made
from ..formats import onnx_files

SHAPES = ((), (0, 2), (1,), (17,), (40,), (1, 30), (30, 1), (6, 7), (18, 9), (35, 4), (5, 4, 3), (6, 3, 2, 2), (2,) * 7)
#: Types that most models have are more frequent.
TYPES = (*["float32"] * 12, "float64", "float16", "int32", "int8", *STORED_TYPES)
NAMES = ("w", "w#bits", "layer.0/weight", "名", "", "b", "c", "d")
SEEDS = st.integers(0, 2**16)
SMALL = st.integers(0, 9)


@dataclass(frozen=True)
class Asked:
    """Request for the encoder.

    ``write`` returns successive bitstreams, made with a number of threads, or raises EncodeError.
    """

    write: Callable[[int], Sequence[bytes]]
    told: str
    topology: Topology | None = None

    def __repr__(self) -> str:
        return self.told


# ------------------------------------------------------------------------------------------------ options
GOALS: dict[str, st.SearchStrategy[Any]] = {
    "quality": st.sampled_from([0, 12, 30, 45.5, 80, 100]),
    "snr": st.sampled_from([0, 20, 41.5, 70]),
    "max_error": st.sampled_from([1e-6, 1e-3, 0.05, 3]),
}
TENSOR: dict[str, st.SearchStrategy[Any]] = {
    "fine_vectors": st.booleans(),
    "dependent_quantization": st.booleans(),
    "exact": st.booleans(),
    "scan_order": st.integers(0, 4),
    "fast_decode": st.booleans(),
    "row_skipping": st.booleans(),
    "cabac_unary_length_minus1": st.sampled_from([0, 1, 5, 9, 30, 255]),
    "choose_shift_parameters": st.booleans(),
    "rate": st.sampled_from([0, 0.3, 1, 16]),
    "codebook": st.sampled_from([0, 1, 2, 5, 16, 300]),
    "noise_shaping": st.booleans(),
    "reducible": st.booleans(),
}
BITSTREAM: dict[str, st.SearchStrategy[Any]] = {
    "effort": st.sampled_from([1, 2, 3, 4, 6, 7, 8, 9]),
    "profile": st.just(0),
    "deflate_topology": st.booleans(),
    "max_unit_size": st.sampled_from([60, 100, 300, 4000]),
    "indexed_references": st.booleans(),
    "side_info": st.booleans(),
    "index": st.booleans(),
    "topology": st.sampled_from(["carried", "external"]),
}
MODEL_ONLY: dict[str, st.SearchStrategy[Any]] = {
    "parts": st.sampled_from([{"*": "all"}, {"*": "a", "*[aeiou]*": "a/b", "?": "c"}, "layers", 1, 500]),
    "layer_parameter_sets": st.booleans(),
    "target_ratio": st.sampled_from([0.3, 0.5, 1.0]),
    "target_size": st.sampled_from([300, 700]),
    "fixed_point": st.just("q7.8"),
    "block": st.booleans(),
    "compressed_parameter_types": st.sampled_from([0, 2, 4, 6, 8, 10, 12, 14]),
    "sensitivity": st.just(True),
    "hessians": st.just(True),
}


def qps(density: int) -> st.SearchStrategy[int]:
    """Draw qp for values near 1, and sometimes any qp."""
    usual = st.integers(-14 << density, 2 << density)
    bound = 1 << (5 + density)
    return usual | usual | st.integers(-bound, bound - 1)


#: Other requested options, each drawn in its own way.
OTHERS = ("qp", "qp_density", "rules", "join", "overrides", "performance", "reduce", "fold_batchnorm", "local_scaling")


@st.composite
def some(draw: st.DrawFn, options: Mapping[str, st.SearchStrategy[Any]], most: int) -> dict[str, Any]:
    """Draw a few of these options."""
    names = draw(st.lists(st.sampled_from(sorted(options)), max_size=most, unique=True))
    return {name: draw(options[name]) for name in names}


@st.composite
def tensor_options(draw: st.DrawFn, density: int, most: int = 3) -> dict[str, Any]:
    """Draw options of a tensor, of all tensors or of a rule, and at most one goal."""
    found = draw(some(TENSOR, most))
    goal = draw(st.sampled_from([None, None, "qp", "qp", *GOALS]))
    if goal and not found.get("exact"):
        found[goal] = draw(qps(density) if goal == "qp" else GOALS[goal])
    return found


@st.composite
def options(draw: st.DrawFn, names: Sequence[str], others: Mapping[str, st.SearchStrategy[Any]]) -> dict[str, Any]:
    """Draw options of a bitstream with tensors of these names."""
    found = draw(some({**BITSTREAM, **others}, 3))
    density = draw(st.sampled_from([2, 2, 2, 0, 1, 3, 7]))
    if density != 2:
        found["qp_density"] = density
    found |= draw(tensor_options(density))
    if not {"target_ratio", "target_size", "fixed_point"}.isdisjoint(found):
        for name in (*GOALS, "qp", "exact"):
            found.pop(name, None)
    if "target_ratio" in found:
        found.pop("target_size", None)
    if "fixed_point" in found:
        for name in (
            "dependent_quantization",
            "rate",
            "codebook",
            "sensitivity",
            "hessians",
            "target_ratio",
            "target_size",
        ):
            found.pop(name, None)
    elif draw(SMALL) < 3:
        pattern = draw(st.sampled_from(["*", "w*", "*b", "[!w]*", *names]))
        found["rules"] = (nnr.Rule(pattern, **draw(tensor_options(density))),)
        if names and draw(SMALL) < 5:
            found["overrides"] = {draw(st.sampled_from(names)): draw(tensor_options(density))}
    if draw(SMALL) < 2:
        found["performance"] = draw(performances)
    return found


MAPS = nnr.PerformanceMaps(
    nnr.SparsificationMap((nnr.SparsificationRow(0.5, 0.25, 0.75, 0b101, (1.0, 0.5)),)),
    nnr.PruningMap((nnr.PruningRow(0.5, 0.75),)),
    nnr.UnificationMap((nnr.UnificationRow(0.5, 0.75, (4, 4), (2,), ()),)),
    nnr.DecompositionMap((nnr.DecompositionRow(0.5, 0.75, 0.25, (0.5,)),)),
)
performances = st.sampled_from(
    [
        nnr.Performance(maps=MAPS),
        nnr.Performance("model 7", "accuracy", validation_set_performance=0.5),
        nnr.Performance("", "loss", True, 0.25, MAPS),
    ]
)


def presets() -> st.SearchStrategy[str]:
    """Draw a preset, mostly none."""
    return st.sampled_from(["default"] * 6 + [*PRESETS])


def config_of(preset: str, found: Mapping[str, Any]) -> nnr.EncoderConfig:
    """Return a preset with these options; without the preset if they do not match."""
    if any(name in found for name in (*GOALS, "qp", "exact", "target_ratio", "target_size", "fixed_point", "reduce")):
        preset = "default"
    return nnr.EncoderConfig.preset(preset, **found)


def with_data(found: Mapping[str, Any], tensors: Mapping[str, Array]) -> dict[str, Any]:
    """Return options in which True is replaced by data about the tensors."""
    options, rng = dict(found), np.random.default_rng(len(tensors))
    if options.pop("sensitivity", None):
        options["sensitivity"] = {
            name: float(rng.random()) if array.ndim < 2 else rng.random(array.shape) for name, array in tensors.items()
        }
    if options.pop("hessians", None):
        options["hessians"] = {}
        for name, array in tensors.items():
            if array.ndim > 1 and array.size:
                columns = array.size // array.shape[0]
                inputs = rng.normal(0, 1, (2 * columns, columns))
                options["hessians"][name] = inputs.T @ inputs
    return options


# ------------------------------------------------------------------------------------------------ models
TOPOLOGIES = (
    Topology("pytorch", b"any text"),
    Topology("tensorflow", b"bytes \xff\xfe" * 40),
    Topology("", b"a topology of nobody's"),
    Topology("onnx", onnx_files.model([onnx_files.node("Relu", ["x"], ["y"])])),
)


@st.composite
def tensors_of_a_model(draw: st.DrawFn) -> dict[str, Array]:
    """Draw tensors of any type, shape and content; sometimes a later one is an earlier one."""
    tensors: dict[str, Array] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)):
        if tensors and draw(SMALL) == 0:
            tensors[name] = tensors[draw(st.sampled_from(list(tensors)))]
        else:
            kind, seed = draw(st.sampled_from(["normal"] * 9 + list(KINDS))), draw(SEEDS)
            tensors[name] = made(kind, draw(st.sampled_from(SHAPES)), draw(st.sampled_from(TYPES)), seed)
    return tensors


@st.composite
def blocks(draw: st.DrawFn) -> Model:
    """Draw a weight, or G and H, with any of its related tensors."""
    rng, rows = np.random.default_rng(draw(SEEDS)), draw(st.sampled_from([1, 5, 18]))
    tensors: dict[str, Array] = {}
    roles: dict[str, Any] = {}
    if draw(SMALL) < 3:
        tensors = {"g": rng.normal(0, 0.3, (rows, 3)).astype("f4"), "h": rng.normal(0, 0.3, (3, 8)).astype("f4")}
        roles = {"g": "g", "h": "h", "two_units": draw(st.booleans())}
    else:
        tensors = {"w": rng.normal(0, 0.1, draw(st.sampled_from([(rows, 4), (rows, 3, 2)]))).astype("f4")}
    members = {"bias": ("bias",), "bn": ("beta", "gamma", "mean", "var"), "scale": ("scale",)}
    for group in [] if roles.get("two_units") else draw(st.lists(st.sampled_from([*members]), unique=True)):
        for role in members[group]:
            roles[role] = f"l.{role}"
            tensors[f"l.{role}"] = rng.uniform(0.5, 1.5, rows).astype("f4")
    tensors["z"] = rng.normal(0, 0.1, (4, 4)).astype("f4")
    return Model(tensors, blocks=[Block("w", **roles)])


@st.composite
def models(draw: st.DrawFn) -> Asked:
    """Draw a model with its options."""
    if draw(SMALL) < 3:
        model = draw(blocks())
    else:
        model = Model(draw(tensors_of_a_model()))
        if draw(SMALL) < 3:
            model.topology = draw(st.sampled_from(TOPOLOGIES))
        if draw(SMALL) < 2:
            model.metadata |= {"key": "value", "a longer one": "text " * 60}
    preset, found = draw(presets()), draw(options(list(model.tensors), MODEL_ONLY))
    if draw(SMALL) < 1 and "exact" not in found:
        found["reduce"] = draw(st.sampled_from(REDUCTIONS))
    if found.get("parts"):
        found.pop("layer_parameter_sets", None)
    names = [name for name in model.tensors if name and not {*name} & {*"{},*?["}]
    if draw(SMALL) < 2 and len(names) > 1:
        found["join"] = [f"{{{','.join(draw(st.lists(st.sampled_from(names), min_size=2, max_size=3, unique=True)))}}}"]

    def write(jobs: int) -> list[bytes]:
        return [nnr.encode(model, config_of(preset, with_data(found, model.tensors)), jobs=jobs)]

    shown = {name: (array.dtype.name, array.shape) for name, array in model.tensors.items()}
    return Asked(write, f"encode({shown}, {model.topology}, preset {preset!r}, {found})")


# ------------------------------------------------------------------------------------------------ networks
#: Steps that any model with a matrix can have.
REDUCTIONS = (
    "sparsify(ratio=0.4)",
    "sparsify(ratio=0.4, method=statistics, mask=true)",
    "sparsify(ratio=0.4, mask=true, order=column)",
    "sparsify(ratio=0.2, method=compressibility)",
    "sparsify(ratio=0.3, method=rows, scope=local)",
    "sparsify(ratio=0.3, method=micro, block=2x1, superblock=4x4)",
    "unify(ratio=0.5, block=1x1x9|1x2x1|2x2x1, superblock=4x4)",
    "lowrank(rank=1)",
    "lowrank(ratio=0.6, form=units)",
    "lowrank(error=0.4, displacement=true)",
    "scale",
    "sparsify(ratio=0.2), unify(ratio=0.2, block=2x2x1, superblock=8x8), scale",
)
#: Steps that need layers.
OF_LAYERS = (
    "prune(ratio=0.3)",
    "prune(ratio=0.3, scope=local, sparsity=0.2, mask=true)",
    "prune(ratio=0.3, form=mask, order=column)",
    "prune(ratio=0.3, form=channels, mask=true)",
    "fold",
    "fold, scale",
    "prune(ratio=0.2), lowrank(rank=2), fold, scale(method=gain)",
)


@st.composite
def layers(draw: st.DrawFn) -> Model:
    """Draw successive convolutions, with biases and batch normalizations, in NNEF."""
    rng, dtype = np.random.default_rng(draw(SEEDS)), draw(st.sampled_from(["f4", "f4", "f4", "f8", "f2"]))
    tensors: dict[str, Array] = {}
    widths = draw(st.lists(st.integers(2, 6), min_size=2, max_size=4))
    lines = [f"  x0 = external<scalar>(shape = [1, {widths[0]}, 6, 6]);"]

    def variable(label: str, values: Array) -> str:
        name = f"v{len(tensors)}"
        tensors[label] = values.astype(dtype)
        lines.append(f"  {name} = variable<scalar>(shape = {list(values.shape)}, label = '{label}');")
        return name

    for k, (inputs, outputs) in enumerate(pairwise(widths)):
        operation, extent = draw(st.sampled_from(["conv", "conv", "deconv"])), draw(st.sampled_from([1, 3]))
        channels = (outputs, inputs) if operation == "conv" else (inputs, outputs)
        given = [f"x{k}", variable(f"{k}.w", rng.normal(0, 0.2, (*channels, extent, extent)))]
        if draw(st.booleans()):
            given.append(variable(f"{k}.b", rng.uniform(-1, 1, (1, outputs))))
        lines.append(f"  c{k} = {operation}({', '.join(given)});")
        last = f"c{k}"
        if draw(SMALL) < 6:
            ranges = {"mean": (-1, 1), "var": (0.1, 3), "beta": (-1, 1), "gamma": (0.3, 2)}
            made_of = [variable(f"{k}.{r}", rng.uniform(*ends, (1, outputs))) for r, ends in ranges.items()]
            lines.append(f"  n{k} = batch_normalization({last}, {', '.join(made_of)}, epsilon = 0.001);")
            last = f"n{k}"
        lines.append(f"  x{k + 1} = relu({last});")
    text = f"version 1.0;\ngraph net(x0) -> (x{len(widths) - 1})\n{{\n" + "\n".join(lines) + "\n}\n"
    return Model(tensors, Topology("nnef", text.encode()))


@st.composite
def networks(draw: st.DrawFn) -> Asked:
    """Draw a network with its options."""
    model = draw(layers())
    found = draw(options(list(model.tensors), MODEL_ONLY))
    for name in draw(st.lists(st.sampled_from(["block", "fold_batchnorm", "local_scaling"]), max_size=2)):
        found[name] = True
    if draw(SMALL) < 6 and not found.get("exact"):
        step = draw(st.sampled_from(REDUCTIONS + OF_LAYERS * 2))
        found["reduce"] = step
        for name, tool in (("fold_batchnorm", "fold"), ("local_scaling", "scale"), ("fixed_point", "scale")):
            if tool in step:
                found.pop(name, None)
    if not {"fold_batchnorm", "local_scaling", "reduce"}.isdisjoint(found):
        found.pop("compressed_parameter_types", None)
    preset = draw(presets())

    def write(jobs: int) -> list[bytes]:
        return [nnr.encode(model, config_of(preset, with_data(found, model.tensors)), jobs=jobs)]

    external = model.topology if found.get("topology") == "external" else None
    return Asked(write, f"encode({model.topology}, preset {preset!r}, {found})", external)


@st.composite
def retrained(draw: st.DrawFn) -> Asked:
    """Draw a network, and one or two updates of it with its options."""
    model, preset, found = draw(layers()), draw(OF_UPDATES), draw(update_options())
    seed, rounds = draw(SEEDS), draw(st.integers(1, 2))
    if draw(st.booleans()):
        found["fold_batchnorm"] = True
        found.pop("exact", None)

    def write(jobs: int) -> list[bytes]:
        rng, models = np.random.default_rng(seed), [model]
        for _ in range(rounds):
            after = {name: changed(rng, array, 0.7) for name, array in models[-1].tensors.items()}
            after |= {name: np.abs(array) for name, array in after.items() if name.endswith("var")}
            models.append(replace(model, tensors=after))
        config = config_of(preset, with_data(found, model.tensors))
        return [nnr.encode_update(before, after, config, jobs=jobs) for before, after in pairwise(models)]

    return Asked(write, f"encode_update({model.topology}, preset {preset!r}, {found}; {seed}, {rounds})")


# ------------------------------------------------------------------------------------------------ aggregates
@st.composite
def aggregates(draw: st.DrawFn) -> Asked:
    """Draw a model whose units are in an aggregate, self-contained or not."""
    asked, entry_points, alone = draw(models()), draw(st.booleans()), draw(st.booleans())

    def write(jobs: int) -> list[bytes]:
        (data,) = asked.write(jobs)
        found = [unit for unit in nnr.units(data) if not unit.depth and not has_index(unit)]  # which would not match
        units = [data[unit.offset :][: unit.size.nnr_unit_size] for unit in found]
        tensors = NNR_LPS, NNR_NDU, NNR_AGG
        first = next((k for k, unit in enumerate(found) if unit.header.nnr_unit_type in tensors), len(found))
        inside = units[first:] if alone else units[2:]
        if len(inside) < 2:
            return [data]
        mps: Any = found[1].payload
        is_whole = alone and not mps.mps_topology_indexed_reference_flag
        options: dict[str, Any] = {"nnr_aggregate_unit_type": NNR_AGG_SLF} if is_whole else {}
        before = b"".join(units[: len(units) - len(inside)])
        reader = UnitReader(before)
        for _ in reader:
            pass
        aggregate = write_aggregate(inside, entry_points=entry_points, session=reader.session, **options)
        return [before + aggregate]

    return Asked(write, f"aggregate({asked}, {entry_points}, {alone})", asked.topology)


# ------------------------------------------------------------------------------------------------ updates
UPDATED = {"w": ((9, 7), "f4"), "k": ((4, 3, 2, 2), "f4"), "b": ((9,), "f4"), "n": ((3, 5), "i4"), "d": ((20, 2), "f8")}
CONTEXTS: dict[str, st.SearchStrategy[Any]] = {
    "temporal_context_modeling": st.booleans(),
    "hist_dep_sig_prob": st.booleans(),
    "nnr_pre": st.booleans(),
    "target_ratio": st.sampled_from([0.2, 0.4, 1.0]),
    "sensitivity": st.just(True),
}
SENDER: dict[str, st.SearchStrategy[Any]] = {
    "device_id": st.sampled_from([1, 77]),
    "parent": st.sampled_from(["node", "sha256", "sha512", "external"]),
    "base_model_id": st.just("a model"),
    "error_feedback": st.booleans(),
    "sparsity": st.sampled_from([0.0, 0.5, 0.95]),
    "structured_sparsity": st.sampled_from([0.3, 0.8]),
    "sbt": st.sampled_from([0.3, 0.9]),
}
OF_UPDATES = st.sampled_from(["update"] * 4 + ["fl", "3gpp-incremental", "default", "small", "fine"])


@st.composite
def update_options(draw: st.DrawFn) -> dict[str, Any]:
    """Draw options of a bitstream that updates have."""
    found = draw(options(list(UPDATED), CONTEXTS))
    for name in ("profile", "topology"):
        found.pop(name, None)
    if "performance" in found:
        found["performance"] = replace(found["performance"], base_model_id=None)
    if found.get("nnr_pre"):
        found["dependent_quantization"] = False
    if "nnr_pre" in found or draw(SMALL) < 3:
        found.pop("exact", None)
    return found


def change(rng: np.random.Generator, before: Mapping[str, Array] | None) -> dict[str, Array]:
    """Return a small change of each tensor, similar to the one before."""
    found: dict[str, Array] = {}
    for name, (shape, dtype) in UPDATED.items():
        values = rng.laplace(0, 4 if dtype == "i4" else 2e-3, shape)
        if before is not None:
            values = 0.7 * before[name] + 0.3 * values
        found[name] = values.astype(dtype)
    return found


@st.composite
def senders(draw: st.DrawFn) -> Asked:
    """Draw two to four successive updates, sometimes after a base model."""
    preset, found, how = draw(OF_UPDATES), draw(update_options()), draw(some(SENDER, 3))
    seed, rounds, has_base = draw(SEEDS), draw(st.integers(2, 4)), draw(st.booleans())
    events = [draw(st.sampled_from(["", "", "", "whole", "reset", "left out"])) for _ in range(rounds)]
    if "sbt" in how and how.get("structured_sparsity") is not None:
        del how["structured_sparsity"]

    def write(jobs: int) -> list[bytes]:
        rng = np.random.default_rng(seed)
        likes = {name: np.empty(shape) for name, (shape, _) in UPDATED.items()}
        encoder = nnr.UpdateEncoder(config_of(preset, with_data(found, likes)), **how)
        bitstreams, last = [], None
        if has_base:
            base = {name: rng.normal(0, 1, shape).astype(dtype) for name, (shape, dtype) in UPDATED.items()}
            bitstreams.append(nnr.encode(base))
            encoder.adopt(bitstreams[0])
        for event in events:
            last = change(rng, last)
            update, whole = dict(last), {}
            if event == "whole":
                whole = {"b": update.pop("b"), "brain": made("normal", (4, 3), "bfloat16", seed)}
            elif event == "reset":
                encoder.reset()
            elif event == "left out":
                update["w"] = np.zeros_like(update["w"])
            bitstreams.append(encoder.encode(update, whole=whole, jobs=jobs))
        return bitstreams

    return Asked(write, f"UpdateEncoder(preset {preset!r}, {found}, {how}; {seed}, base {has_base}, {events})")


@st.composite
def differences(draw: st.DrawFn) -> Asked:
    """Draw updates of models, and one that combines two of them."""
    preset, found, seed = draw(OF_UPDATES), draw(update_options()), draw(SEEDS)
    how = draw(some({"lossless": st.just(True), "sbt": st.sampled_from([0.3, 0.9])}, 1))
    if how.get("lossless"):
        for name in ("qp", *GOALS, "exact", "target_ratio", "rules", "overrides"):
            found.pop(name, None)
        preset = "default"
    before = draw(tensors_of_a_model())
    share, squashed = draw(st.sampled_from([0.1, 1.0])), draw(st.booleans())

    def write(jobs: int) -> list[bytes]:
        rng = np.random.default_rng(seed)
        after = {name: changed(rng, array, share) for name, array in before.items()}
        after["another"] = rng.normal(0, 1, (5, 6)).astype("f4")
        update = nnr.encode_update(before, after, config_of(preset, with_data(found, before)), jobs=jobs, **how)
        return [nnr.squash_updates(before, [update])] if squashed else [update]

    shown = {name: (array.dtype.name, array.shape) for name, array in before.items()}
    return Asked(write, f"encode_update({shown}, preset {preset!r}, {found}, {how}; {seed}, {share}, {squashed})")


def changed(rng: np.random.Generator, array: Array, share: float) -> Array:
    """Return the tensor with small changes of some values."""
    after = array.copy()
    where = rng.random(array.shape) < share
    with np.errstate(all="ignore"):
        values = array.astype("f8")
        other = np.where(np.isfinite(values), values + rng.laplace(0, 1e-2, array.shape), 0)
        if array.dtype.kind in "iu" or array.dtype.name.startswith(("int", "uint")):
            other = np.clip(np.rint(other + rng.integers(-2, 3, array.shape)), 0, 7)
        other = other.astype(array.dtype)
    after[where] = other[where]
    return after


ASKED = {
    "models": models(),
    "networks": networks(),
    "retrained": retrained(),
    "aggregates": aggregates(),
    "senders": senders(),
    "differences": differences(),
}
