"""Operations of NNEF 1.0.3, chapter 4: their parameters, results and permitted values.

Declarations are in the language itself (3.2.2), several names with one declaration on a line. Additions of 1.0.4 and
1.0.5 are included, because documents of all 1.0.x versions state ``version 1.0``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence

from .parser import parse_fragments
from .tree import Fragment

_DECLARATIONS = """
external<? = scalar>(shape: integer[]) -> (output: tensor<?>)
constant<? = scalar>(shape: integer[], value: ?[]) -> (output: tensor<?>)
variable<? = scalar>(shape: integer[], label: string) -> (output: tensor<?>)

copy<?>(x: tensor<?>) -> (y: tensor<?>)
neg rcp exp log sin cos abs sign floor ceil round sqr sqrt rsqr rsqrt log2(x: tensor<scalar>) -> (y: tensor<scalar>)
not(x: tensor<logical>) -> (y: tensor<logical>)
add sub mul div pow min max(x: tensor<scalar>, y: tensor<scalar>) -> (z: tensor<scalar>)
lt gt le ge eq ne(x: tensor<scalar>, y: tensor<scalar>) -> (z: tensor<logical>)
and or(x: tensor<logical>, y: tensor<logical>) -> (z: tensor<logical>)
select<?>(condition: tensor<logical>, true_value: tensor<?>, false_value: tensor<?>) -> (output: tensor<?>)
clamp(x: tensor<scalar>, a: tensor<scalar>, b: tensor<scalar>) -> (y: tensor<scalar>)

conv(input: tensor<scalar>, filter: tensor<scalar>, bias: tensor<scalar> = 0.0, WINDOW, groups: integer = 1) -> OUTPUT
deconv(input: tensor<scalar>, filter: tensor<scalar>, bias: tensor<scalar> = 0.0, WINDOW, output_shape: integer[] = [],
  groups: integer = 1) -> OUTPUT
box(input: tensor<scalar>, size: integer[], WINDOW, normalize: logical = false) -> OUTPUT
debox(input: tensor<scalar>, size: integer[], WINDOW, output_shape: integer[] = [], normalize: logical = false)
  -> OUTPUT
argmax_pool(input: tensor<>, size: integer[], WINDOW) -> (index: tensor<integer>)
sample(input: tensor<scalar>, index: tensor<integer>, size: integer[], WINDOW) -> OUTPUT
desample(input: tensor<scalar>, index: tensor<integer>, size: integer[], WINDOW, output_shape: integer[] = []) -> OUTPUT
nearest_downsample area_downsample nearest_upsample(input: tensor<scalar>, factor: integer[]) -> OUTPUT
multilinear_upsample(input: tensor<scalar>, factor: integer[], method: string = 'symmetric',
  border: string = 'replicate') -> OUTPUT

sum_reduce(input: tensor<scalar>, axes: integer[], normalize: logical = false) -> OUTPUT
max_reduce min_reduce mean_reduce(input: tensor<scalar>, axes: integer[]) -> OUTPUT
argmax_reduce argmin_reduce(input: tensor<scalar>, axes: integer[]) -> (output: tensor<integer>)
all_reduce any_reduce(input: tensor<logical>, axes: integer[]) -> (output: tensor<logical>)

reshape<?>(input: tensor<?>, shape: integer[], axis_start: integer = 0, axis_count: integer = -1)
  -> (output: tensor<?>)
squeeze unsqueeze transpose<?>(input: tensor<?>, axes: integer[]) -> (output: tensor<?>)
split<?>(value: tensor<?>, axis: integer, ratios: integer[]) -> (values: tensor<?>[])
concat stack<?>(values: tensor<?>[], axis: integer) -> (value: tensor<?>)
unstack<?>(value: tensor<?>, axis: integer) -> (values: tensor<?>[])
slice<?>(input: tensor<?>, axes: integer[], begin: integer[], end: integer[], stride: integer[] = [])
  -> (output: tensor<?>)
pad(input: tensor<scalar>, padding: (integer, integer)[], border: string = 'constant', value: scalar = 0.0) -> OUTPUT
tile<?>(input: tensor<?>, repeats: integer[]) -> (output: tensor<?>)

avg_roi_pool max_roi_pool(ROIS) -> OUTPUT
roi_resample(ROIS, method: string = 'symmetric') -> OUTPUT
avg_roi_align max_roi_align(ROIS, sampling_rate: integer[], resize_method: string = 'symmetric') -> OUTPUT

matmul(A: tensor<scalar>, B: tensor<scalar>, transposeA: logical = false, transposeB: logical = false)
  -> (C: tensor<scalar>)
update<?>(variable: tensor<?>, value: tensor<?>) -> (result: tensor<?>)

sigmoid relu tanh softplus(x: tensor<scalar>) -> (y: tensor<scalar>)
prelu(x: tensor<scalar>, alpha: tensor<scalar>) -> (y: tensor<scalar>)
leaky_relu(x: tensor<scalar>, alpha: scalar) -> (y: tensor<scalar>)
elu(x: tensor<scalar>, alpha: scalar = 1.0) -> (y: tensor<scalar>)
softmax(x: tensor<scalar>, axes: integer[] = [1]) -> (y: tensor<scalar>)
linear(input: tensor<scalar>, filter: tensor<scalar>, bias: tensor<scalar> = 0.0) -> OUTPUT
separable_conv(input: tensor<scalar>, plane_filter: tensor<scalar>, point_filter: tensor<scalar>,
  bias: tensor<scalar> = 0.0, WINDOW, groups: integer = 1) -> OUTPUT
separable_deconv(input: tensor<scalar>, plane_filter: tensor<scalar>, point_filter: tensor<scalar>,
  bias: tensor<scalar> = 0.0, WINDOW, output_shape: integer[] = [], groups: integer = 1) -> OUTPUT
max_pool_with_index(input: tensor<scalar>, size: integer[], WINDOW)
  -> (output: tensor<scalar>, index: tensor<integer>)
max_pool avg_pool rms_pool(input: tensor<scalar>, size: integer[], WINDOW) -> OUTPUT
local_response_normalization(input: tensor<scalar>, size: integer[], alpha: scalar = 1.0, beta: scalar = 0.5,
  bias: scalar = 1.0) -> OUTPUT
local_mean_normalization(input: tensor<scalar>, size: integer[]) -> OUTPUT
local_variance_normalization local_contrast_normalization(input: tensor<scalar>, size: integer[], bias: scalar = 0.0,
  epsilon: scalar = 0.0) -> OUTPUT
l1_normalization l2_normalization(input: tensor<scalar>, axes: integer[], bias: scalar = 0.0, epsilon: scalar = 0.0)
  -> OUTPUT
batch_normalization(input: tensor<scalar>, mean: tensor<scalar>, variance: tensor<scalar>, offset: tensor<scalar>,
  scale: tensor<scalar>, epsilon: scalar) -> OUTPUT
min_max_linear_quantize(x: tensor<scalar>, min: tensor<scalar>, max: tensor<scalar>, bits: integer, signed: logical,
  symmetric: logical) -> (y: tensor<scalar>)
zero_point_linear_quantize(x: tensor<scalar>, zero_point: tensor<integer>, scale: tensor<scalar>, bits: integer,
  signed: logical, symmetric: logical) -> (y: tensor<scalar>)
linear_quantize(x: tensor<scalar>, min: tensor<scalar>, max: tensor<scalar>, bits: integer) -> (y: tensor<scalar>)
logarithmic_quantize(x: tensor<scalar>, max: tensor<scalar>, bits: integer) -> (y: tensor<scalar>)
copy_n<?>(x: tensor<?>, times: integer) -> (y: tensor<?>[])
add_n(x: tensor<scalar>[]) -> (y: tensor<scalar>)
moments(input: tensor<scalar>, axes: integer[]) -> (mean: tensor<scalar>, variance: tensor<scalar>)
"""
_DECLARATIONS_SINCE_1_0_4 = """
tan sinh cosh asin acos atan asinh acosh atanh gelu silu(x: tensor<scalar>) -> (y: tensor<scalar>)
selu(x: tensor<scalar>, alpha: scalar = 1.67326319, lambda: scalar = 1.05070102) -> (y: tensor<scalar>)
gather<?>(input: tensor<?>, indices: tensor<integer>, axis: integer = 0) -> (output: tensor<?>)
cast<?>(input: tensor<>) -> (output: tensor<?>)
"""
_SHORT = {
    "WINDOW": "border: string = 'constant', padding: (integer, integer)[] = [], stride: integer[] = [],"
    " dilation: integer[] = []",
    "ROIS": "input: tensor<scalar>, rois: tensor<scalar>, batch_index: tensor<integer>, output_size: integer[]",
    "OUTPUT": "(output: tensor<scalar>)",
}

#: Operations permitted only in the body of the graph (3.3.2).
GRAPH_ONLY = frozenset({"external", "variable", "update"})

_BORDERS = ("constant", "replicate", "reflect", "reflect-even")
_WINDOWED = ("box", "debox", "argmax_pool", "max_pool_with_index", "max_pool", "avg_pool", "rms_pool")
_METHODS = ("symmetric", "asymmetric")
#: Permitted strings of parameters, with their clause.
MODES: Mapping[tuple[str, str], tuple[tuple[str, ...], str]] = {
    **{(name, "border"): (_BORDERS, "4.3.1") for name in ("conv", "deconv", "separable_conv", "separable_deconv")},
    **{(name, "border"): (("ignore", *_BORDERS), "4.3.2") for name in _WINDOWED},
    ("sample", "border"): (_BORDERS, "4.3.3"),
    ("desample", "border"): (("constant",), "4.3.3"),
    ("multilinear_upsample", "border"): (_BORDERS, "4.3.4"),
    ("multilinear_upsample", "method"): ((*_METHODS, "aligned"), "4.3.4"),
    ("pad", "border"): (("ignore", *_BORDERS), "4.5.5"),
    ("roi_resample", "method"): (_METHODS, "4.6.2"),
    ("avg_roi_align", "resize_method"): (_METHODS, "4.6.2"),
    ("max_roi_align", "resize_method"): (_METHODS, "4.6.2"),
}
#: Minimum of integers, or of each integer in an array, by parameter name, with its clause; not for ``reshape``.
LEAST: Mapping[str, tuple[int, str]] = {
    **dict.fromkeys(("size", "stride", "dilation"), (1, "4.3")),
    "shape": (1, "4.1"),
    "groups": (0, "4.3.1"),
    "factor": (1, "4.3.4"),
    "axes": (0, "4.4"),
    "axis": (0, "4.5.3"),
    "ratios": (1, "4.5.3"),
    "repeats": (1, "4.5.6"),
    "output_size": (1, "4.6"),
    "sampling_rate": (1, "4.6"),
}


def argument_fault(operation: str, parameter: str, value: object) -> tuple[str, str] | None:
    """Return a description of a forbidden argument of an operation, and the clause; None if it is permitted.

    Strings are compared with :data:`MODES`, and an integer or a sequence of integers with :data:`LEAST`.
    """
    if isinstance(value, str):
        modes, clause = MODES.get((operation, parameter), ((), ""))
        if modes and value not in modes:
            return f"unknown {parameter} {value[:40]!a} of {operation}; choose one of {', '.join(modes)}", clause
    if parameter not in LEAST or operation in ("reshape", "variable") or (operation, parameter) == ("slice", "stride"):
        return None
    least, clause = LEAST[parameter]
    items = value if isinstance(value, Sequence) else (value,)
    numbers = [item for item in items if isinstance(item, int)]
    if any(number < least for number in numbers):
        return f"{parameter} of {operation} must be at least {least}", clause
    if parameter == "axes" and len(set(numbers)) < len(numbers):
        return f"axes of {operation} must be distinct", clause
    return None


@functools.cache
def operations() -> Mapping[str, Fragment]:
    """Return the declarations of all operations by name: the 104 of NNEF 1.0.3, then later ones."""
    return {**_parsed(_DECLARATIONS), **later_operations()}


@functools.cache
def later_operations() -> Mapping[str, Fragment]:
    """Return the declarations of the operations that NNEF 1.0.4 and 1.0.5 added."""
    return _parsed(_DECLARATIONS_SINCE_1_0_4)


def _parsed(declarations: str) -> dict[str, Fragment]:
    text = re.sub("|".join(_SHORT), lambda found: _SHORT[found[0]], declarations)
    lines = []
    for names, declared in re.findall(r"^([\w ]+)((?:<|\().*(?:\n  .*)*)$", text, re.MULTILINE):
        lines += [f"fragment {name}{declared};" for name in names.split()]
    return {fragment.name.name: fragment for fragment in parse_fragments("\n".join(lines).encode())}
