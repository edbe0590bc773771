"""Loading of bitstreams into PyTorch, tensor by tensor; import it by name: ``import nnr_codec.torch``.

>>> missing, unexpected = load_into(network, "model.nnr")                               # doctest: +SKIP
>>> state = load_state_dict("model.nnr", lazy=True)                                     # doctest: +SKIP

:mod:`nnr_codec.integrations.training` has hooks for training loops, and
:mod:`nnr_codec.integrations.distributed_checkpoint` stores checkpoints of ``torch.distributed.checkpoint``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, overload

from .api.decoding import open as open_bitstream
from .formats import require
from .formats.pytorch.items import tensor_of
from .formats.pytorch.modules import check_fit, check_names, fitted, from_module, load_state, state_of
from .integrations.torch import sensitivity

if TYPE_CHECKING:
    from .bitstream.source import Bitstream
    from .decoder.index import NnrFile
    from .decoder.info import TensorInfo
    from .limits import Limits
    from .model import Array

__all__ = ["LazyStateDict", "from_module", "load_into", "load_state", "load_state_dict", "sensitivity"]

#: Prefix of all names in the state of a module that ``DataParallel`` or ``DistributedDataParallel`` wraps.
_WRAPPED = "module."


@overload
def load_state_dict(
    source: Bitstream, *, device: Any = "cpu", lazy: Literal[False] = False, limits: Limits | None = None
) -> dict[str, Any]: ...


@overload
def load_state_dict(
    source: Bitstream, *, device: Any = "cpu", lazy: Literal[True], limits: Limits | None = None
) -> LazyStateDict: ...


def load_state_dict(
    source: Bitstream, *, device: Any = "cpu", lazy: bool = False, limits: Limits | None = None
) -> dict[str, Any] | LazyStateDict:
    """Decode a bitstream to PyTorch tensors by name, one tensor at a time.

    Parameters
    ----------
    source : bytes-like, path or binary file
        A complete bitstream.
    device : torch.device, str or int
        Device of the tensors; each is moved there as soon as it is decoded.
    lazy : bool
        Return a mapping that decodes each tensor on access, from a file that stays open; only headers are read now.
        ``module.load_state_dict`` would decode all of its tensors first; :func:`load_into` does not.
    limits : Limits, optional
        Resource limits; ``Limits.strict()`` for untrusted input.

    Returns
    -------
    dict of str to torch.Tensor, or LazyStateDict
        In a dict, tied tensors are one object.

    Raises
    ------
    NnrError, OSError
        As for :func:`nnr_codec.decode`.
    FormatError
        PyTorch has no type for a tensor.
    MissingDependencyError
        PyTorch is not installed.
    """
    state = LazyStateDict(source, device=device, limits=limits)
    if lazy:
        return state
    with state:
        return state.materialized()


def load_into(
    module: Any, source: Bitstream, *, strict: bool = True, limits: Limits | None = None
) -> tuple[list[str], list[str]]:
    """Decode a bitstream into the parameters and buffers of a module, which keep their types, devices and ties.

    Large tensors are decoded and copied one at a time. Tensors of the module that share memory, such as tied weights,
    need only one of their names in the bitstream. The prefix ``module.`` of ``DistributedDataParallel`` is added or
    removed if all names differ by it. Processes do not communicate: each decodes the bitstream and gets the same
    values.

    Parameters
    ----------
    module : torch.nn.Module
        A module with memory for its tensors; after ``torch.device("meta")``, call ``module.to_empty`` first.
    source, limits
        As for :func:`load_state_dict`.
    strict : bool
        Require all tensors of the module and no others.

    Returns
    -------
    missing, unexpected : list of str
        Names in the module that were not loaded, and names in the bitstream that were not used.

    Raises
    ------
    FormatError
        Names, shapes or kinds of types do not match the module, which is then unchanged.
    NnrError
        A payload is damaged; the tensors before it are already replaced.
    MissingDependencyError
        PyTorch is not installed.
    """
    with open_bitstream(source, limits=limits) as file:
        match = Match(module, file.info)
        if strict:
            check_names(match.missing, match.unexpected)
        match.load(file)
    return match.missing, match.unexpected


class Match:
    """Tensors of a module, with the tensors of a model that belong to them.

    Parameters
    ----------
    module : torch.nn.Module
    infos : mapping of str to TensorInfo
        Tensors of the model.

    Attributes
    ----------
    missing, unexpected : list of str
        See :func:`load_into`.
    """

    def __init__(self, module: Any, infos: Mapping[str, TensorInfo]) -> None:
        self._torch: Any = require("torch", "torch", "a PyTorch module")
        self._infos, self._state = infos, state_of(self._torch, module)
        found, state = _renamed(infos, self._state), self._state
        self.missing: list[str] = []
        self.unexpected = [own for name, own in found.items() if name not in state]
        self._used = {name: own for name, own in found.items() if name in state}
        for group in sharing(state):
            present = [name for name in group if name in self._used]
            if not present:
                self.missing.append(group[0])
            for name in present[1:]:
                own, first = self._used.pop(name), self._used[present[0]]
                if (infos[own].same_as or own) != (infos[first].same_as or first):
                    self.unexpected.append(own)  # two tensors for the same memory

    def load(self, file: NnrFile) -> None:
        """Decode and copy one tensor at a time, after a check of all types and shapes."""
        targets = self.targets()
        with self._torch.no_grad(), file.deferred(names=targets) as model:
            for own in model:
                targets[own].copy_(fitted(own, model[own], targets[own]))
        file.warn()

    def targets(self) -> dict[str, Any]:
        """Return the tensors of the module by the names of the model, after a check of all types and shapes."""
        targets = {own: self._state[name] for name, own in self._used.items()}
        for own, target in targets.items():
            check_fit(own, self._infos[own].dtype, self._infos[own].shape, target)
        return targets

    def copy(self, tensors: Mapping[str, Array], lock: AbstractContextManager[Any] | None = None) -> None:
        """Copy tensors of the model, after a check of all types and shapes; ``lock`` is held during the copies."""
        targets = self.targets()
        new = {own: fitted(own, array, targets[own]) for own, array in tensors.items() if own in targets}
        with self._torch.no_grad(), lock or nullcontext():
            for own, tensor in new.items():
                targets[own].copy_(tensor)


def _renamed(found: Collection[str], needed: Collection[str]) -> dict[str, str]:
    """Return the names of a bitstream by the names in the module, with or without the prefix of wrapped modules."""
    theirs, ours = ({name.startswith(_WRAPPED) for name in names} for names in (found, needed))
    if theirs == {True} and ours == {False}:
        return {name.removeprefix(_WRAPPED): name for name in found}
    if theirs == {False} and ours == {True}:
        return {_WRAPPED + name: name for name in found}
    return {name: name for name in found}


def sharing(tensors: Mapping[str, Any]) -> list[list[str]]:
    """Return names of tensors in groups whose memory overlaps, by address; at equal addresses, the longest first."""
    areas, groups = [], []
    for name, tensor in tensors.items():
        if tensor.is_meta or not tensor.numel():
            groups.append([name])
            continue
        start = tensor.data_ptr()
        last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
        areas.append((str(tensor.device), start, -start - (last + 1) * tensor.element_size(), name))
    device, end = "", 0
    for here, start, stop, name in sorted(areas):
        if here == device and start < end:
            groups[-1].append(name)
        else:
            groups.append([name])
            device, end = here, 0
        end = max(end, -stop)
    return groups


def converter(device: Any) -> Callable[[str, Array], Any]:
    """Return a function that converts a named array to a PyTorch tensor on a device."""
    target = require("torch", "torch", "conversion to PyTorch tensors").device(device)
    return lambda name, array: tensor_of(array, f"tensor {name[:80]!a}").to(target)


class LazyStateDict(Mapping[str, Any]):
    """Mapping of names to PyTorch tensors, decoded on each access; see :func:`load_state_dict`.

    A context manager that closes the file.
    """

    def __init__(self, source: Bitstream, *, device: Any = "cpu", limits: Limits | None = None) -> None:
        self._made = converter(device)
        self._file = open_bitstream(source, limits=limits)

    def __getitem__(self, name: str) -> Any:
        return self._made(name, self._file[name])

    def materialized(self) -> dict[str, Any]:
        """Return a dict of all tensors; tied tensors are one object."""
        found: dict[str, Any] = {}
        with self._file.deferred() as model:
            for name in model:
                own = model.aliases.get(name)
                found[name] = found[own] if own in found else self._made(name, model[name])
        self._file.warn()
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._file)

    def __len__(self) -> int:
        return len(self._file)

    def __enter__(self) -> LazyStateDict:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
