"""Filters that transfer models and differences as NNR bitstreams between the sites of NVIDIA FLARE.

>>> recipe.add_server_output_filter(NNREncode(), tasks=["train"])                        # doctest: +SKIP
>>> recipe.add_client_input_filter(NNRDecode(), tasks=["train"])                         # doctest: +SKIP
>>> recipe.add_client_output_filter(NNREncode(), tasks=["train"])                        # doctest: +SKIP
>>> recipe.add_server_input_filter(NNRDecode(), tasks=["train"])                         # doctest: +SKIP

docs/guides/nvflare.md describes the configuration of sites, the options, and the rejected messages.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from .. import EncoderConfig, Limits, UpdateEncoder, encode, identity
from .. import open as open_bitstream
from ..config import ConfigOptions
from ..dtypes import STORED_TYPES, stored_type
from ..errors import EncodeError, FormatError, LimitError, MissingDependencyError
from ..limits import Budget
from ..model import Array
from .rounds import as_type, one_line

try:
    from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
    from nvflare.apis.dxo_filter import DXOFilter
    from nvflare.apis.filter import FilterChainType, FilterContextKey
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable, make_copy
except ImportError:
    raise MissingDependencyError("the package nvflare is required; pip install 'nnr_codec[nvflare]'") from None

KINDS = [DataKind.WEIGHTS, DataKind.WEIGHT_DIFF]
#: Keys in the data of a DXO: the bitstream; types and shapes of omitted differences; values that are not tensors; and
#: whether the tensors belong to PyTorch.
BITSTREAM, TYPES, VALUES, TORCH = "nnr_codec", "types", "values", "torch"
#: Types of values, other than tensors, that are sent with the bitstream.
PLAIN = (str, bool, int, float, type(None))
#: Number of bitstreams kept for other receivers of the same tensors.
KEPT = 4

Content = dict[str, Any]
Schema = dict[str, tuple[int, ...] | None]
Types = dict[str, np.dtype[Any]]
#: Shapes and types of the sent tensors, and whether they belong to PyTorch.
Sent = tuple[Schema, Types, bool]


class _NNRFilter(DXOFilter):  # type: ignore[misc]  # nvflare is not type-checked
    """Base of both filters; inputs are never modified."""

    def __init__(self, kinds: list[DataKind] | None) -> None:
        super().__init__(supported_data_kinds=kinds, data_kinds_to_filter=kinds)

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """Filter all models of a shareable; called by NVFlare."""
        try:
            dxo = from_shareable(shareable)
        except ValueError:  # not a model
            return shareable
        if dxo.data_kind == DataKind.COLLECTION:  # a filter replaces the members in place
            shareable = _own(dxo).update_shareable(make_copy(shareable))
        return super().process(shareable, fl_ctx)

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Exclude nnr_codec from the code in a job, because sites have it installed; called by NVFlare."""
        job.set_app_packages(sorted({*job.job.app_packages, __name__.partition(".")[0]}))
        super().add_to_fed_job(job, ctx, **kwargs)


class NNREncode(_NNRFilter):
    """Encoder of models (DataKind.WEIGHTS) and differences (DataKind.WEIGHT_DIFF), for servers and clients.

    Each DXO is replaced by a new one of the same kind. Equal tensors are encoded once for any number of receivers and
    threads. On a server, tensors keep the types in which they were first sent, even if aggregation changed them.

    Parameters
    ----------
    preset : str, optional
        Preset of :meth:`nnr_codec.EncoderConfig.preset`; default: ``"default"`` for models, ``"update"`` for
        differences.
    options : dict, optional
        Fields of EncoderConfig that replace fields of the preset, such as ``{"qp": -32}``.
    error_feedback : bool
        Add the coding error of previous differences to the next differences. Only for messages of clients.
    sparsity : float, optional
        Share of the parameters of all matrices together, 0..1, that is set to zero in differences, as for
        :class:`nnr_codec.UpdateEncoder`.
    jobs : int
        Number of threads for encoding.
    sbt, sbt_ternary : float, optional
        Binary-ternary quantization of differences, as for :class:`nnr_codec.UpdateEncoder`.

    Raises TypeError for unknown options. Raises EncodeError for invalid values, and during filtering for tensors that
    cannot be coded; NVFlare then answers the task with an error.
    """

    def __init__(
        self,
        preset: str | None = None,
        options: ConfigOptions | None = None,
        error_feedback: bool = False,
        sparsity: float | None = None,
        jobs: int = 1,
        sbt: float | None = None,
        sbt_ternary: float | None = None,
    ) -> None:
        super().__init__(KINDS)
        if jobs < 1:
            raise EncodeError(f"jobs must be at least 1, got {jobs}")
        # Attributes have the names of the parameters, because NVFlare writes them into the configuration of a job.
        self.preset, self.options, self.jobs = preset, options, jobs
        self.error_feedback, self.sparsity = error_feedback, sparsity
        self.sbt, self.sbt_ternary = sbt, sbt_ternary
        self._lock = Lock()
        self._encodings: dict[tuple[str, str], Future[tuple[bytes, Content]]] = {}
        self._types: dict[str, np.dtype[Any]] = {}
        self._settings = EncoderConfig.preset(preset or "default", **(options or {}))
        self._update_settings = EncoderConfig.preset(preset or "update", **(options or {}))
        encoder = self._update_encoder()  # validates the options
        self._feedback = encoder if error_feedback else None

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return a DXO with a bitstream; None if it already has one."""
        if BITSTREAM in dxo.data:
            return None
        arrays, values, is_torch = _tensors(dxo.data)
        if self.get_prop(FilterContextKey.CHAIN_TYPE) == FilterChainType.TASK_DATA_CHAIN:
            if self.error_feedback:
                raise EncodeError("error_feedback applies only to data that clients send; omit it on the server")
            arrays = self._typed(arrays)
            schema: Schema = {name: array.shape for name, array in arrays.items()} | dict.fromkeys(values)
            types: Types = {name: array.dtype for name, array in arrays.items()}
            fl_ctx.set_prop(_sent(fl_ctx), (schema, types, is_torch), private=True, sticky=True)
        bitstream, declared = self._once(_kind(dxo), arrays)
        content: Content = {BITSTREAM: bitstream}
        for key, value in ((TYPES, declared), (VALUES, values), (TORCH, is_torch)):
            if value:
                content[key] = value
        before = sum(array.nbytes for array in arrays.values())
        self.log_info(
            fl_ctx,
            f"{_kind(dxo)}: {len(arrays)} tensors of {before:,} bytes in {len(bitstream):,}"
            f" ({len(bitstream) / max(before, 1):.1%})",
        )
        return _new(dxo, content)

    def _typed(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Return tensors in the types in which they were first sent."""
        with self._lock:
            types = {name: self._types.setdefault(name, array.dtype) for name, array in arrays.items()}
        return {name: as_type(array, types[name]) for name, array in arrays.items()}

    def _once(self, kind: str, arrays: dict[str, Array]) -> tuple[bytes, Content]:
        """Return the bitstream of tensors and the information outside it; reuse the result of another thread if
        possible."""
        if self._feedback:
            with self._lock:  # coding errors must be added to the next message
                return self._encode(kind, arrays)
        key = kind, identity(arrays)
        with self._lock:
            found = self._encodings.get(key)
            encoding = found or self._encodings.setdefault(key, Future())
            while len(self._encodings) > KEPT:
                del self._encodings[next(iter(self._encodings))]
        if not found:
            try:
                encoding.set_result(self._encode(kind, arrays))
            except BaseException as error:
                with self._lock:
                    self._encodings.pop(key, None)
                encoding.set_exception(error)
        return encoding.result()

    def _encode(self, kind: str, arrays: dict[str, Array]) -> tuple[bytes, Content]:
        if kind == DataKind.WEIGHTS.value:
            return encode(arrays, self._settings, jobs=self.jobs), {}
        whole = {name: array for name, array in arrays.items() if not self._has_differences(name, array)}
        differences = {name: array for name, array in arrays.items() if name not in whole}
        encoder = self._feedback or self._update_encoder()
        bitstream = encoder.encode(differences, whole=whole, jobs=self.jobs)
        types: Content = {}
        for name, array in arrays.items():
            decoded = encoder.decoded.get(name)
            if decoded is None or decoded.shape != array.shape or decoded.dtype.name != array.dtype.name:
                types[name] = [array.dtype.name, list(array.shape)]
        return bitstream, types

    def _has_differences(self, name: str, array: Array) -> bool:
        """Return whether UpdateEncoder accepts an array as differences, and keeps every bit if required."""
        stored = stored_type(array.dtype)
        if stored is None or stored.kind == "b" or stored.bits < 8:
            return False
        if stored.kind == "f":
            return stored.name != "float64" or not self._update_settings.for_tensor(name).exact
        return not array.size or (int(array.min()) >= -(1 << 31) and int(array.max()) < 1 << 31)

    def _update_encoder(self) -> UpdateEncoder:
        """Return an encoder without state: updates do not refer to earlier updates."""
        return UpdateEncoder(
            self._update_settings,
            parent="external",
            error_feedback=self.error_feedback,
            sparsity=self.sparsity,
            sbt=self.sbt,
            sbt_ternary=self.sbt_ternary,
        )


class NNRDecode(_NNRFilter):
    """Decoder of the output of :class:`NNREncode`, with the original types and shapes.

    Parameters
    ----------
    limits : str or dict, optional
        Limits for a bitstream: ``"strict"``, ``"unlimited"``, or fields of :class:`nnr_codec.Limits`.
    like_sent : bool
        Reject tensors that the model of the task lacks or that have another shape, and data other than models and
        metrics; convert tensors of narrower types to the types of the model. Applies to replies to the output of an
        NNREncode on the same server.
    finite : bool
        Reject tensors with values that are not finite.
    jobs : int
        Number of threads for decoding.

    Any fault of a message, including a model without a bitstream, is logged with the name of its sender and raised,
    usually as an :class:`nnr_codec.NnrError`. NVFlare then treats the task as failed and aggregates nothing.
    """

    def __init__(
        self,
        limits: str | dict[str, Any] | None = None,
        like_sent: bool = True,
        finite: bool = True,
        jobs: int = 1,
    ) -> None:
        super().__init__(None)
        self.limits, self.like_sent, self.finite, self.jobs = limits, like_sent, finite, jobs
        self._limits = _limits(limits)

    def process_dxo(self, dxo: DXO, shareable: Shareable, fl_ctx: FLContext) -> DXO | None:
        """Return a DXO with the tensors; None for other kinds of data."""
        sent = fl_ctx.get_prop(_sent(fl_ctx)) if self.like_sent else None
        try:
            if dxo.data_kind in KINDS:
                return _new(dxo, self._decode(dxo, sent))
            if sent is None or dxo.data_kind == DataKind.METRICS:
                return None
            raise FormatError("the reply to a model must be a model")  # NVFlare would treat it as a model
        except Exception as error:
            peer = fl_ctx.get_peer_context()
            sender = peer.get_identity_name() if isinstance(peer, FLContext) else "an unknown sender"
            self.log_error(fl_ctx, f"{_kind(dxo)} of {sender} rejected: {one_line(error)}")
            raise

    def _decode(self, dxo: DXO, sent: Sent | None) -> Content:
        bitstream, types, values, is_torch = _content(dxo.data)
        file = open_bitstream(bitstream, limits=self._limits)
        declared = _declared(types, self._limits)
        shapes: Schema = {name: shape for name, (_, shape) in declared.items()}
        for name, info in file.info.items():
            shape = declared[name][1] if name in declared else info.shape
            if info.parameters != prod(shape):
                raise FormatError(f"tensor {name!r} of shape {info.shape} cannot be reshaped to {shape}", tensor=name)
            shapes[name] = shape
        if both := values.keys() & shapes.keys():
            raise FormatError(f"{min(both)!r} is both a tensor and a value")
        shapes |= dict.fromkeys(values)
        if sent:
            _check_sent(shapes, is_torch, sent)
        tensors = file.decode(allow_missing=dxo.data_kind == DataKind.WEIGHT_DIFF, jobs=self.jobs).tensors
        content: Content = {}
        for name, array in tensors.items():
            dtype, shape = declared.get(name, (array.dtype, array.shape))
            content[name] = as_type(array.reshape(shape), dtype)
        content |= {name: np.zeros(shape, dtype) for name, (dtype, shape) in declared.items() if name not in tensors}
        if sent:
            content = {name: _widened(array, sent[1][name]) for name, array in content.items()}
        if self.finite:
            for name, value in {**content, **values}.items():
                if isinstance(value, float | np.ndarray) and not np.isfinite(value).all():
                    raise FormatError(f"{name!r} is not finite", tensor=name)
        if is_torch:
            content = {name: _to_torch(array) for name, array in content.items()}
        return {**content, **values}


# ------------------------------------------------------------------------------------------ content of DXOs
def _new(dxo: DXO, content: Content) -> DXO:
    """Return a DXO of the same kind with other content; both share no objects."""
    meta = {key: value for key, value in (dxo.meta or {}).items() if key != MetaKey.FILTER_HISTORY}
    return DXO(dxo.data_kind, data=content, meta=meta)  # NVFlare adds the history


def _kind(dxo: DXO) -> str:
    known = [kind.value for kind in DataKind if kind == dxo.data_kind]
    return known[0] if known else "data of an unknown kind"


def _own(dxo: DXO) -> DXO:
    """Return a copy of a collection and its nested collections; all other members are shared."""
    if dxo.data_kind != DataKind.COLLECTION:
        return dxo
    return DXO(dxo.data_kind, data={key: _own(member) for key, member in dxo.data.items()}, meta=dxo.meta)


def _sent(fl_ctx: FLContext) -> str:
    """Return the name of the server property with the information about the sent tensors of the task."""
    return f"nnr_codec.sent.{fl_ctx.get_prop(FLContextKey.TASK_NAME)}"


def _tensors(data: Mapping[str, Any]) -> tuple[dict[str, Array], Content, bool]:
    """Return the tensors, the other values, and whether the tensors belong to PyTorch."""
    arrays: dict[str, Array] = {}
    values: Content = {}
    kinds = set()
    for name, value in data.items():
        if isinstance(value, np.ndarray | np.generic):
            kinds.add(False)
            arrays[name] = np.asarray(value)
        elif type(value).__module__.partition(".")[0] == "torch":
            kinds.add(True)
            arrays[name] = _from_torch(name, value)
        elif isinstance(value, PLAIN):
            values[name] = value
        else:
            raise EncodeError(f"{name!r} must be an array or a tensor, got {type(value).__name__}")
    if len(kinds) > 1:
        raise EncodeError("numpy arrays and PyTorch tensors cannot be mixed")
    return arrays, values, True in kinds


def _content(data: Mapping[str, Any]) -> tuple[bytes, Content, Content, bool]:
    """Return the data of NNREncode in a DXO. Raise FormatError if it has none."""
    found = data.get(BITSTREAM), data.get(TYPES, {}), data.get(VALUES, {}), data.get(TORCH, False)
    if BITSTREAM not in data:
        raise FormatError("the message has no bitstream; use NNREncode on the sending side")
    if data.keys() - {BITSTREAM, TYPES, VALUES, TORCH} or not all(
        isinstance(part, kind) for part, kind in zip(found, (bytes, dict, dict, bool), strict=True)
    ):
        raise FormatError("the data beside the bitstream is not in the format of NNREncode")
    for name, value in found[2].items():
        if not isinstance(name, str) or not isinstance(value, PLAIN):
            raise FormatError(f"value {name!r} has the unsupported type {type(value).__name__}")
    return found  # type: ignore[return-value]  # checked above


def _declared(types: Content, limits: Limits) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return types and shapes of differences. Raise LimitError before they exceed the limits."""
    budget = Budget(limits)
    declared = {}
    for name, entry in types.items():
        try:
            dtype, extents = entry
            stored, shape = STORED_TYPES[dtype], tuple(extents)
        except (TypeError, ValueError, KeyError):
            raise FormatError(f"tensor {name!r}: {entry!r:.80} is not a type and a shape", tensor=name) from None
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise FormatError(f"tensor {name!r}: {shape!r:.80} is not a shape", tensor=name)
        budget.tensor(shape, stored.itemsize, f"tensor {name!r}")
        declared[name] = stored.dtype, shape
    return declared


def _check_sent(shapes: Schema, is_torch: bool, sent: Sent) -> None:
    """Raise LimitError unless the tensors have names, shapes and the type (PyTorch or numpy) of the task's model."""
    schema, _, were_torch = sent
    for name, shape in shapes.items():
        if name not in schema:
            raise LimitError(f"tensor {name!r} is not one of the {len(schema)} sent tensors", tensor=name)
        if shape != schema[name]:
            raise LimitError(f"tensor {name!r} has shape {shape}; the sent tensor has {schema[name]}", tensor=name)
    if is_torch != were_torch:
        raise LimitError(
            f"expected {'PyTorch tensors' if were_torch else 'numpy arrays'}, as sent, "
            f"got {'PyTorch tensors' if is_torch else 'numpy arrays'}"
        )


def _limits(given: str | Mapping[str, Any] | None) -> Limits:
    if given is None or isinstance(given, Mapping):
        return Limits(**(given or {}))
    if given not in ("strict", "unlimited"):
        raise ValueError(f"limits {given!r} are unknown; use 'strict', 'unlimited' or fields of nnr_codec.Limits")
    return Limits.strict() if given == "strict" else Limits.unlimited()


# ------------------------------------------------------------------------------------------ tensors
def _widened(array: Array, sent: np.dtype[Any]) -> Array:
    """Return a tensor in at least the sent type, because sums use the type of the first tensor.

    Floats stay floats even if integers were sent.
    """
    stored, wanted = stored_type(array.dtype), stored_type(sent)
    if stored is None or wanted is None:
        return array
    is_float, be_float = stored.kind == "f", wanted.kind == "f"
    narrow = stored.bits < wanted.bits if is_float == be_float else be_float
    return as_type(array, sent) if narrow else array


def _from_torch(name: str, tensor: Any) -> Array:
    """Return a PyTorch tensor as an array, sharing memory if possible."""
    stored = STORED_TYPES.get(str(tensor.dtype).rpartition(".")[2])
    if stored is None:
        raise EncodeError(f"tensor {name!r} has the unsupported type {tensor.dtype}", tensor=name)
    tensor = tensor.detach().cpu()
    if stored.is_numpys:
        array: Array = tensor.numpy()
        return array
    carrier = getattr(sys.modules["torch"], f"int{stored.bits}")
    carried: Array = tensor.view(carrier).numpy().view(stored.dtype)
    return carried


def _to_torch(array: Array) -> Any:
    """Return an array as a PyTorch tensor."""
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise MissingDependencyError("the tensors require the package torch; pip install 'nnr_codec[torch]'") from None
    stored = stored_type(array.dtype)
    if stored is None or stored.is_numpys:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(f"i{stored.itemsize}")).view(getattr(torch, stored.name))
