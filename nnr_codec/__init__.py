"""An encoder and decoder for ISO/IEC 15938-17:2024, the compression of neural networks (NNR, also called NNC).

>>> import numpy as np, nnr_codec as nnr
>>> data = nnr.encode({"w": np.linspace(-1, 1, 600, dtype="f4").reshape(20, 30)})
>>> nnr.decode(data)["w"].shape
(20, 30)

Clause numbers refer to ISO/IEC 15938-17:2024 throughout the package. Syntax elements and derived variables carry the
standard's names; variables that it writes in CamelCase are written in snake_case.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import (
        EncodeReport,
        decode,
        encode,
        encode_file,
        inspect,
        load,
        open,  # noqa: A004  # as in gzip.open
        save,
        units,
    )
    from .config import EncoderConfig, Rule
    from .decoder.index import NnrFile, TensorInfo
    from .decoder.state import UpdateState
    from .decoder.update import UpdateDecoder
    from .errors import (
        BitstreamError,
        ElementError,
        EncodeError,
        FormatError,
        LimitError,
        MissingDependencyError,
        MissingReferenceError,
        NnrError,
        PayloadError,
        TruncatedError,
        UnsupportedError,
    )
    from .limits import Limits
    from .model import Block, Model, Topology

__version__ = "0.1.0"

_NAMES = {
    "api": "EncodeReport decode encode encode_file inspect load open save units",
    "config": "EncoderConfig Rule",
    "decoder.index": "NnrFile TensorInfo",
    "decoder.state": "UpdateState",
    "decoder.update": "UpdateDecoder",
    "errors": "BitstreamError ElementError EncodeError FormatError LimitError MissingDependencyError "
    "MissingReferenceError NnrError PayloadError TruncatedError UnsupportedError",
    "limits": "Limits",
    "model": "Block Model Topology",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [  # noqa: PLE0604  # names that __getattr__ provides
    *_MODULE_OF,
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``nnr --version`` need not wait for numpy."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
