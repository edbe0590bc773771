"""Any layers with any options for blocks: all decoders return the tensors of ``folded``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import nnr_codec as nnr
from nnr_codec.model import Array, Model, Topology

from ..shared import examples

_DTYPES = st.sampled_from(["f4", "f4", "f4", "f8", "f2"])
#: Calls that use the variable w, with the axis of its outputs and its number of dimensions.
_OPERATIONS = {
    "conv(x_{k}, w_{k}{bias})": (0, 4),
    "conv(x_{k}, t_{k}{bias})": (2, 4),
    "deconv(x_{k}, w_{k}{bias})": (1, 4),
    "separable_conv(x_{k}, p_{k}, w_{k}{bias})": (0, 4),
    "linear(x_{k}, w_{k}{bias})": (0, 2),
    "matmul(x_{k}, w_{k})": (1, 2),
    "matmul(x_{k}, w_{k}, transposeB = true)": (0, 2),
}
_TOOLS = st.sampled_from([["local_scaling"], ["fold_batchnorm"], ["fold_batchnorm", "local_scaling"], ["block"]])
_OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "topology": st.just("external"),
        "indexed_references": st.just(True),
        "profile": st.sampled_from([1, 0]),
        "effort": st.sampled_from([1, 5, 7, 9]),
        "qp": st.sampled_from([-60, -40, -30]),
        "dependent_quantization": st.booleans(),
        "scan_order": st.sampled_from([1, 2]),
        "row_skipping": st.booleans(),
        "codebook": st.sampled_from([0, 8]),
        "max_unit_size": st.just(4000),
    },
).filter(lambda options: not (options.get("row_skipping") and "profile" in options))  # profile 0 skips no rows
_EXACT = st.none() | st.none() | st.sampled_from(["*.w", "*.bias", "*.gamma", "*.mean", "0.*"])


@st.composite
def _models(draw: st.DrawFn) -> Model:
    """Draw some layers, each with or without bias, scale and batch normalization."""
    lines, tensors, outputs = [], dict[str, Array](), []
    rng, dtype = np.random.default_rng(draw(st.integers(0, 999))), draw(_DTYPES)
    for k in range(draw(st.integers(1, 3))):
        own: list[str] = []

        def variable(name: str, values: Array, own: list[str] = own, k: int = k) -> None:
            own.append(f"  {name}_{k} = variable<scalar>(shape = {list(values.shape)}, label = '{k}.{name}');")
            tensors[f"{k}.{name}"] = values.astype(dtype)

        call = draw(st.sampled_from([*_OPERATIONS]))
        axis, ndim = _OPERATIONS[call]
        outs, ins = draw(st.sampled_from([5, 3, 1])), draw(st.integers(1, 4))
        shape = [ins, *draw(st.lists(st.integers(1, 3), min_size=ndim - 2, max_size=ndim - 2))]
        shape.insert(axis, outs)
        gains = np.geomspace(1, draw(st.sampled_from([1, 30])), outs).reshape([-1] + [1] * (ndim - 1 - axis))
        vector = st.sampled_from([(1, outs), (1, outs, 1, 1)])
        variable("w", rng.normal(0, draw(st.sampled_from([10.0, 0.5, 300.0, 0.0])), shape) * gains)
        if "p_" in call:
            variable("p", rng.normal(0, 0.1, (ins, 1, 3, 3)))
        is_scaled, has_bias = draw(st.booleans()), draw(st.booleans())
        is_argument = has_bias and not is_scaled and "{bias}" in call and draw(st.booleans())
        if is_scaled:
            variable("scale", rng.uniform(0.5, 2, draw(vector)))
        if has_bias:
            variable("bias", rng.uniform(-1, 1, draw(vector)))
        own.append(f"  x_{k} = external<scalar>(shape = [1, {ins}, 8, 8]);")
        if "t_" in call:
            own.append(f"  t_{k} = transpose(w_{k}, axes = [2, 1, 0, 3]);")
        own.append(f"  a_{k} = {call.format(k=k, bias=f', bias_{k}' if is_argument else '')};")
        last = f"a_{k}"
        if is_scaled:
            own.append(f"  c_{k} = mul({last}, scale_{k});")
            last = f"c_{k}"
        if has_bias and not is_argument:
            own.append(f"  d_{k} = add({last}, bias_{k});")
            last = f"d_{k}"
        if draw(st.sampled_from([True, True, True, False])):
            like = draw(vector)
            for name, low, high in (("mean", -1, 1), ("var", 0.05, 3), ("beta", -1, 1), ("gamma", 0.3, 2)):
                variable(name, rng.uniform(low, high, like if draw(st.integers(0, 5)) else (1, outs)))
            epsilon = draw(st.sampled_from([0.0, 0.001, 1.0]))
            names = ", ".join(f"{name}_{k}" for name in ("mean", "var", "beta", "gamma"))
            own.append(f"  y_{k} = batch_normalization({last}, {names}, epsilon = {epsilon});")
            last = f"y_{k}"
        lines += own
        outputs.append(last)
    externals = ", ".join(f"x_{k}" for k in range(len(outputs)))
    head = f"version 1.0;\ngraph net({externals}) -> ({', '.join(outputs)})\n{{\n"
    return Model(tensors, Topology("nnef", (head + "\n".join(lines) + "\n}\n").encode()))


def _same(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    assert set(got) == set(wanted)
    for name, array in wanted.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        assert got[name].tobytes() == array.tobytes(), name


@settings(max_examples=examples(70))
@given(_models(), _TOOLS, _OPTIONS, _EXACT)
def test_what_comes_out(model: Model, tools: list[str], options: dict[str, Any], exact: str | None) -> None:
    options |= dict.fromkeys(tools, True)
    if exact:
        options["rules"] = (nnr.Rule(exact, exact=True),)
    try:
        data = nnr.encode(model, **options)
    except nnr.EncodeError as error:
        assert "no batch normalization can be folded" in str(error)
        return
    assert nnr.encode(model, jobs=2, **options) == data
    wanted, others = nnr.folded(model, **options), {"topology": model.topology}
    got = nnr.decode(data, **others)
    config = nnr.EncoderConfig(**options)
    step = 2.0 ** ((-40 if config.qp is None else config.qp) / 4)
    assert set(got.tensors) == set(wanted.tensors)
    for name, array in wanted.tensors.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape), name
        values = array.astype("f8")
        errors = np.abs(got[name].astype("f8") - values)
        if config.for_tensor(name).exact:
            assert not errors.any(), name
        elif config.codebook is None:  # a scale enlarges the step size of a weight, and has its own relative error
            assert (errors <= 12 * step + np.abs(values).max() / 200).all(), name
    # Extents of the inputs do not match most operations.
    assert {violation.requirement for violation in nnr.verify(data, **others).violations} <= {"nnef-graph"}
    stream = nnr.StreamDecoder(**others)
    pieces = (data[k : k + 99] for k in range(0, len(data), 99))
    _same(dict([*(one for piece in pieces for one in stream.feed(piece)), *stream.finish()]), got.tensors)
    with nnr.open(data, **others) as file:
        assert list(file) == list(got)
        _same({name: file[name] for name in file}, got.tensors)
        for name, info in file.info.items():
            assert (info.shape, info.dtype) == (got[name].shape, got[name].dtype), name
            axis, half = info.first_tensor_dimension_shift, (info.shape[info.first_tensor_dimension_shift] + 1) // 2
            np.testing.assert_array_equal(file.rows(name, 0, half), np.take(got[name], range(half), axis))
        with file.deferred(jobs=2) as deferred:
            assert list(deferred) == list(got)
            _same(deferred.tensors, got.tensors)
    with tempfile.TemporaryDirectory() as folder:
        report = nnr.encode_file(model, Path(folder) / "x.nnr", config, statistics=True)
        assert Path(folder, "x.nnr").read_bytes() == data
        assert set(report.tensors) == set(model.tensors)
        assert report.difference.tensors == nnr.compare_models(wanted, got).tensors
        nnr.decode_file(data, Path(folder) / "m.tar", **others)
        _same(nnr.load(Path(folder) / "m.tar").tensors, got.tensors)
