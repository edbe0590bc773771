"""Codec ``nnr`` of zarr format 3, which encodes each chunk of an array as an NNR bitstream.

>>> zarr.create_array(store, data=array, serializer=NnrCodec(max_error=1e-3), compressors=None)  # doctest: +SKIP

zarr finds the codec by its entry point, so that readers need not import this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from ..errors import MissingDependencyError
from .numcodecs import ChunkEncoder, ChunkOptions, check_type, decode_chunk

try:
    from zarr.abc.codec import ArrayBytesCodec
except ImportError:
    raise MissingDependencyError("the package zarr is required; pip install 'nnr_codec[zarr]'") from None


@dataclass(frozen=True, init=False)
class NnrCodec(ArrayBytesCodec):  # type: ignore[misc]  # zarr is not type-checked
    """Array-to-bytes codec of zarr format 3, lossless unless a goal is given.

    Parameters
    ----------
    **options
        As for :class:`nnr_codec.integrations.numcodecs.Nnr`; they are stored in ``zarr.json``.

    Raises EncodeError for invalid values, TypeError for unknown options; also when an array is opened.
    """

    options: Mapping[str, Any] = field(hash=False)
    _encoder: ChunkEncoder = field(repr=False, compare=False)

    is_fixed_size = False

    def __init__(self, **options: Unpack[ChunkOptions]) -> None:
        object.__setattr__(self, "options", dict(options))
        object.__setattr__(self, "_encoder", ChunkEncoder(type(self), options))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NnrCodec:
        """Return the codec of the metadata of an array."""
        return cls(**data.get("configuration", {}))

    def to_dict(self) -> dict[str, Any]:
        """Return the metadata of the codec."""
        return {"name": "nnr", "configuration": dict(self.options)}

    def evolve_from_array_spec(self, array_spec: Any) -> NnrCodec:
        """Raise EncodeError for an array of an unsupported type, such as a structured one."""
        check_type(array_spec.dtype.to_native_dtype())
        return self

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
        """Raise NotImplementedError, because sizes vary."""
        raise NotImplementedError

    def _encode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return chunk_spec.prototype.buffer.from_bytes(self._encoder.encode(chunk_data.as_numpy_array()))

    def _decode_sync(self, chunk_data: Any, chunk_spec: Any) -> Any:
        array = decode_chunk(chunk_data.to_bytes(), chunk_spec.shape, chunk_spec.dtype.to_native_dtype())
        return chunk_spec.prototype.nd_buffer.from_numpy_array(array)

    async def _encode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._encode_sync, chunk_data, chunk_spec)

    async def _decode_single(self, chunk_data: Any, chunk_spec: Any) -> Any:
        return await asyncio.to_thread(self._decode_sync, chunk_data, chunk_spec)
