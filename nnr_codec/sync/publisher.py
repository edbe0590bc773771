"""Publisher: each version of a model as an update of the version before, or as a whole model."""

from __future__ import annotations

import hashlib
import os
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack

import numpy as np

from .. import formats
from ..api.encoding import encode
from ..cabac_ext import bits
from ..config import MODEL_GOALS, EncoderConfig, EncoderOptions, configured
from ..conformance.digest import TensorDigest
from ..dtypes import bit_patterns, stored_type
from ..encoder.encode import encode_units
from ..encoder.facts import check_name
from ..encoder.goals import with_exact
from ..errors import EncodeError, EncodeWarning, NnrError, Option
from ..federated.apply import apply_update
from ..federated.update import prepare_update, update_settings
from ..limits import Limits
from ..model import Array, Model
from .records import Kind, Record, frame_head, version_path
from .subscriber import Subscriber, changed_digests, identity_of
from .transport import SyncFolder

if TYPE_CHECKING:
    from ..api.arguments import ModelSource

#: Versions from one anchor of a folder to the next.
ANCHOR_EVERY = 50
#: Values whose errors are computed at a time, which limits the memory for copies in float64.
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Publication:
    """Published version.

    Parameters
    ----------
    version : int
        1 for the first version.
    kind : str
        ``"update"`` of the version before, or ``"anchor"``: the whole model.
    identity : str
        Identity of the model that subscribers have; see :func:`nnr_codec.identity`.
    nbytes : int
        Bytes of the payload.
    anchor_bytes : int
        Bytes of the payload of the additional anchor of an update; 0 if there is none.
    frame : bytes
        The message to send, for a publisher without a target; see :meth:`Subscriber.feed`. Empty for other publishers.
    """

    version: int
    kind: Kind
    identity: str
    nbytes: int
    anchor_bytes: int
    frame: bytes = field(repr=False)


class Publisher:
    """Sender of the versions of a model to any number of subscribers.

    Parameters
    ----------
    target : path, str, writable binary file or None
        Path of a folder, or a URL that fsspec supports. The folder is made if it does not exist; a folder with versions
        is continued. Or a byte stream such as a pipe or ``socket.makefile("wb")``. None: the application sends
        :attr:`Publication.frame`. A byte stream begins with an anchor.
    anchor_every : int, optional
        Number of versions from one whole model to the next; 0: only if an update would not be smaller. Default: 50 for
        folders, 0 for byte streams.
    keep : int or None, default 2
        Number of anchors of a folder to keep, with all later versions; earlier versions are deleted after each anchor.
        None: keep all versions.
    sign : callable, optional
        Called with the bytes of each record, which contain the digest of its payload; returns the signature (bytes).
    jobs : int, default 1
        Number of threads.
    limits, storage_options
        As for :class:`Subscriber`, to continue a folder.
    config, options
        As for :func:`nnr_codec.encode_update`. Every version is exact, unless there is a goal (qp, quality, snr,
        max_error) or ``exact=False``: then updates are lossy, the next update also corrects their errors, and
        ``max_error`` bounds the error of each version. Anchors are always lossless encodings of the model that
        subscribers have.

    Attributes
    ----------
    version : int
        Last published version; 0 before the first.

    Raises
    ------
    EncodeError
        An option does not apply to updates.
    FormatError
        The folder is not a folder of :mod:`nnr_codec.sync`.
    MissingDependencyError
        The URL requires a package that is not installed.
    OSError
        The folder cannot be read or written.

    Warns
    -----
    EncodeWarning
        The last version of the folder cannot be restored, so that the next version is an anchor.
    """

    def __init__(
        self,
        target: str | os.PathLike[str] | BinaryIO | None,
        config: EncoderConfig | None = None,
        *,
        anchor_every: int | None = None,
        keep: int | None = 2,
        sign: Callable[[bytes], bytes] | None = None,
        jobs: int = 1,
        limits: Limits | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Unpack[EncoderOptions],
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        if anchor_every is not None and anchor_every < 0:
            raise ValueError(f"anchor_every must be at least 0, got {anchor_every}")
        self._settings = _settings(config, options)
        self._sign, self._jobs, self._keep = sign, jobs, keep
        self.version, self._model, self._identity = 0, Model({}), ""
        self._digests: Mapping[str, TensorDigest] = {}
        self._anchors, self._anchor_bytes = set[int](), 0
        self._folder: SyncFolder | None = None
        self._file: BinaryIO | None = None
        self._uncertain = False  # whether a version was published in spite of an error
        if isinstance(target, (str, os.PathLike)):
            self._folder = SyncFolder(target, limits or Limits(), storage_options)
            self._folder.open(create=True)
            self._stream = self._folder.stream
            self._follower = partial(Subscriber, target, jobs=jobs, limits=limits, storage_options=storage_options)
            self._restore(self._folder)
        elif target is not None and not hasattr(target, "write"):
            raise TypeError(f"the target must be a path, a URL, a writable binary file or None, got {target!r}")
        else:
            self._file, self._stream = target, secrets.token_hex(16)
        self._anchor_every = anchor_every if anchor_every is not None else ANCHOR_EVERY if self._folder else 0

    def __repr__(self) -> str:
        return f"<Publisher at version {self.version}>"

    def publish(self, model: ModelSource, *, anchor: bool = False) -> Publication:
        """Publish the next version of a model.

        Parameters
        ----------
        model : Model, mapping of str to ndarray or torch.Tensor, torch.nn.Module, path, bytes-like or binary file
            It is copied where it changed; it must not change during the call. Attachments are not published.
        anchor : bool, default False
            Publish the whole model too, for subscribers that lost an update.

        Returns
        -------
        Publication

        Raises
        ------
        EncodeError
            A tensor cannot be coded with these options.
        FormatError
            A tensor has an unsupported type.
        FileExistsError
            Another publisher published this version.
        OSError
            The target cannot be written.

        If a write failed, subscribers may have the version in spite of that. The next call then continues a folder as a
        new publisher does, or a byte stream with an anchor of the next version.
        """
        if self._uncertain and self._folder:
            self._restore(self._folder)
        elif self._uncertain:
            self.version, self._identity = self.version + 1, ""
        self._uncertain = False
        version, base = self.version + 1, self._model
        new = snapshot(_loaded(model), base)
        update = None
        if self._identity and base.tensors.keys() <= new.tensors.keys():
            update, new = self._update(base, new)
        digests = changed_digests(new, base, self._digests, self._jobs)
        identity = identity_of(digests)
        whole = None
        if update is None or len(update) >= self._anchor_bytes:
            whole = self._whole(new)
            if update is not None and len(whole) <= len(update):
                update = None
        kind: Kind = "anchor" if update is None else "update"
        payload = update or whole or b""
        self._uncertain = True
        frames = self._write(version, kind, identity, payload)
        self._uncertain = False
        self.version, self._model, self._digests, self._identity = version, new, digests, identity
        due = 0 < self._anchor_every <= version - max(self._anchors, default=0)
        if update is not None and (whole or due or anchor):
            whole = whole or self._whole(new)
            frames += self._write(version, "anchor", identity, whole, additional=True)
        if whole:
            self._anchors.add(version)
            self._anchor_bytes = len(whole)
            self._remove_old()
        extra = len(whole) if whole and update is not None else 0
        return Publication(version, kind, identity, len(payload), extra, frames)

    def _restore(self, folder: SyncFolder) -> None:
        """Continue with the last version of a folder."""
        subscriber, reason = self._follower(), ""
        try:
            subscriber.poll()
        except NnrError as error:
            reason = f": {error}"
        versions = folder.versions()
        self.version = max(versions, default=0)
        paths = [version_path(number) for number in versions]
        paths += [version_path(number, anchor=True) for number in folder.anchors()]
        anchors = {record.version: record.size for record in folder.records(paths, {}) if record.kind == "anchor"}
        self._anchors, self._anchor_bytes = set(anchors), anchors[max(anchors)] if anchors else 0
        self._model, self._digests, self._identity = subscriber.content()
        if subscriber.version != self.version:
            self._identity = ""
            message = f"version {self.version} cannot be restored, so the next version is an anchor{reason}"
            warnings.warn(EncodeWarning(message), stacklevel=3)

    def _update(self, base: Model, new: Model) -> tuple[bytes, Model]:
        """Return an update, and the model that subscribers restore from it."""
        changed = [name for name, array in new.tensors.items() if array is not base.tensors.get(name)]
        whole = [name for name in changed if name not in base.tensors or not _alike(base.tensors[name], new[name])]
        settings = with_exact(self._settings, [name for name in whole if not self._settings.for_tensor(name).exact])
        while True:
            # Without warnings of large errors, which later updates correct.
            prepared, steps, _ = prepare_update(base, new, settings, False, base_id=self._identity)
            data = b"".join(encode_units(prepared, steps, jobs=self._jobs))
            if all(settings.for_tensor(name).exact for name in changed):
                return data, new
            restored = apply_update(base, data, limits=Limits.unlimited(), check=False, jobs=self._jobs)
            stricter = {}
            for name in changed:
                bound = self._settings.for_tensor(name).max_error
                if bound is not None and _largest_error(restored[name], new[name]) > bound:
                    # Rounding of the sum at most doubles the error, because the new value is a value of the type.
                    was_asked = settings.for_tensor(name).max_error == bound
                    stricter[name] = {"max_error": bound / 2} if was_asked else {"exact": True}
            if not stricter:
                return data, restored
            settings = settings.overridden(stricter)

    def _whole(self, model: Model) -> bytes:
        """Return a whole model, losslessly."""
        return encode(model, EncoderConfig(exact=True, effort=self._settings.effort), jobs=self._jobs)

    def _write(self, version: int, kind: Kind, identity: str, data: bytes, *, additional: bool = False) -> bytes:
        """Send a payload with its record; without a target, return the frame."""
        time = datetime.now(UTC).isoformat(timespec="microseconds")
        record = Record(self._stream, version, kind, hashlib.sha256(data).hexdigest(), len(data), identity, time)
        if self._sign:
            record = replace(record, signature=self._sign(record.signed_bytes()).hex())
        if self._folder:
            try:
                self._folder.write(record, data, additional=additional)
            except FileExistsError:
                self._uncertain = False
                raise FileExistsError(
                    f"another publisher published version {version} ({self._folder.url}); use one publisher at a time"
                ) from None
            return b""
        text = record.to_bytes()
        head = frame_head(text) + text
        if self._file is None:
            return head + data
        _write_all(self._file, head)
        _write_all(self._file, data)
        self._file.flush()
        return b""

    def _remove_old(self) -> None:
        """Delete versions before the oldest anchor to keep."""
        if self._folder and self._keep and len(self._anchors) > self._keep:
            self._anchors = set(sorted(self._anchors)[-self._keep :])
            self._folder.remove_before(min(self._anchors))


def _settings(config: EncoderConfig | None, options: EncoderOptions) -> EncoderConfig:
    """Return the options of updates, which are lossless by default."""
    settings = configured(Publisher, config, options)
    for option in ("target_size", "target_ratio", "fold_batchnorm"):
        if getattr(settings, option):
            raise EncodeError(Option(option), " does not apply to a sequence of versions; omit it")
    if settings.exact is False or any(getattr(settings, goal) is not None for goal in MODEL_GOALS):
        return update_settings(Publisher, config, options)
    return update_settings(Publisher, config, {**options, "exact": True})


def _loaded(model: ModelSource) -> Model:
    """Return a model without attachments. The state of a module is used without an analysis of its layers."""
    if not isinstance(model, Model | Mapping) and hasattr(model, "state_dict"):
        model = dict(model.state_dict())
    return replace(formats.as_model(model), attachments={})


def snapshot(model: Model, base: Model) -> Model:
    """Return a model with copies of its tensors; tensors that are equal in the base are the objects of the base."""
    tensors: dict[str, Array] = {}
    for name, tensor in model.tensors.items():
        check_name(name)
        array, before = np.asarray(tensor), base.tensors.get(name)
        tied = tensors.get(model.aliases.get(name, ""))
        if before is not None and _alike(before, array) and _equal(before, array):
            tensors[name] = before
        elif tied is not None:
            tensors[name] = tied
        else:
            tensors[name] = np.array(array, order="C")
    return replace(model, tensors=tensors)


def _alike(before: Array, after: Array) -> bool:
    """Return whether two tensors have the same type and shape."""
    stored = stored_type(after.dtype)
    return stored is not None and stored_type(before.dtype) is stored and before.shape == after.shape


def _equal(before: Array, after: Array) -> bool:
    """Return whether all bits of two tensors of the same type and shape are equal."""
    return bits.equal(bit_patterns(before).view(np.uint8), bit_patterns(after).view(np.uint8))


def _largest_error(array: Array, wanted: Array) -> float:
    """Return the largest absolute error of a tensor; infinity if a value is NaN in one of the arrays only."""
    one, other, largest = array.reshape(-1), wanted.reshape(-1), 0.0
    for start in range(0, one.size, _CHUNK):
        found, given = (values[start : start + _CHUNK].astype(np.float64) for values in (one, other))
        with np.errstate(invalid="ignore"):
            error = np.abs(found - given)
        error[(found == given) | (np.isnan(found) & np.isnan(given))] = 0
        error[np.isnan(error)] = np.inf
        largest = max(largest, float(error.max(initial=0)))
    return largest


def _write_all(file: BinaryIO, data: bytes) -> None:
    """Write bytes to a file that may accept a part of them."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or len(view) :]
