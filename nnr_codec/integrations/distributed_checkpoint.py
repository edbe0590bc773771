"""Storage of ``torch.distributed.checkpoint`` that keeps the tensors of each process in a bitstream.

>>> checkpoint.save(state, storage_writer=NnrStorageWriter("step-100"))                 # doctest: +SKIP
>>> checkpoint.load(state, storage_reader=NnrStorageReader("step-100"))                 # doctest: +SKIP

Both extend the classes that store files in a folder. As there, ``.metadata`` of the folder is a pickle of PyTorch: read
only checkpoints that you trust.
"""

from __future__ import annotations

import io
import os
from operator import itemgetter
from typing import Any, Unpack

import numpy as np

from .. import encode_file
from .. import open as open_bitstream
from ..config import EncoderOptions, lossless_by_default
from ..formats import require
from ..formats.pytorch.items import named_array, tensor_of
from ..model import Array, Model

_torch: Any = require("torch", "torch", "a distributed checkpoint")
_checkpoint: Any = require("torch.distributed.checkpoint", "torch", "a distributed checkpoint")
_planner: Any = require("torch.distributed.checkpoint.planner", "torch", "a distributed checkpoint")
_storage: Any = require("torch.distributed.checkpoint.storage", "torch", "a distributed checkpoint")


class NnrStorageWriter(_checkpoint.FileSystemWriter):  # type: ignore[misc]  # PyTorch is not type-checked
    """Writer of one bitstream for each process, and of the metadata of PyTorch.

    The tensors of a process are copied to main memory before they are encoded.

    Parameters
    ----------
    path : path
        The folder; an existing checkpoint is replaced.
    **options
        Fields of :class:`nnr_codec.EncoderConfig`; lossless by default, as in :mod:`nnr_codec.safetensors`. Integers
        and values that are not tensors are always stored losslessly.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Unpack[EncoderOptions]) -> None:
        super().__init__(path)
        self._config = lossless_by_default(type(self), options)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Encode the tensors and other values of this process."""
        arrays: dict[str, Array] = {}
        results = []
        file = f"{plan.storage_data.prefix}0.nnr"
        for number, item in enumerate(plan.items):
            name = f"{item.index.fqn}#{number}"  # a process may have several parts of one tensor
            data = planner.resolve_data(item)
            if item.type == _planner.WriteItemType.BYTE_IO:
                arrays[name] = np.frombuffer(data.getbuffer(), np.uint8)
            else:
                arrays[name] = named_array(name, data)
            results.append(_storage.WriteResult(item.index, arrays[name].nbytes, (file, name)))
        encode_file(Model(arrays), self.path / file, self._config, overwrite=True)
        done = _torch.futures.Future()
        done.set_result(results)
        return done


class NnrStorageReader(_checkpoint.FileSystemReader):  # type: ignore[misc]  # PyTorch is not type-checked
    """Reader of checkpoints of :class:`NnrStorageWriter`, also with another number of processes.

    Each process decodes the tensors of which it needs a part.

    Parameters
    ----------
    path : path
    """

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Decode the requested values, one tensor at a time."""
        requests = [(*self.storage_data[item.storage_index], item) for item in plan.items]
        for path in sorted({file for file, *_ in requests}):
            with open_bitstream(self.path / path) as file:
                decoded, array = "", None
                for _, name, item in sorted((each for each in requests if each[0] == path), key=itemgetter(1)):
                    if array is None or name != decoded:
                        decoded, array = name, file[name]
                    if item.type == _planner.LoadItemType.BYTE_IO:
                        planner.load_bytes(item, io.BytesIO(array.tobytes()))
                        continue
                    part = zip(item.storage_offsets, item.lengths, strict=True)
                    values = tensor_of(array, f"tensor {name[:80]!a}")[tuple(slice(at, at + n) for at, n in part)]
                    target = planner.resolve_tensor(item).detach()
                    target.copy_(values)
                    planner.commit_tensor(item, target)
        done = _torch.futures.Future()
        done.set_result(None)
        return done
