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

if TYPE_CHECKING:  # "as": re-exported on purpose, see PEP 484
    from .api.bitstreams import inspect as inspect
    from .api.bitstreams import units as units
    from .api.bitstreams import verify as verify
    from .api.bitstreams import verify_model as verify_model
    from .api.bitstreams import write_units as write_units
    from .api.decoding import decode as decode
    from .api.decoding import decode_file as decode_file
    from .api.decoding import open as open
    from .api.encoding import encode as encode
    from .api.encoding import encode_file as encode_file
    from .api.files import load as load
    from .api.files import save as save
    from .api.trials import estimate as estimate
    from .api.trials import folded as folded
    from .api.trials import measure as measure
    from .api.trials import reduce as reduce
    from .api.trials import tune as tune
    from .bitstream.aggregate import extract as extract
    from .bitstream.ndu import write_ndu as write_ndu
    from .bitstream.nodes import Node as Node
    from .bitstream.nodes import UnitNode as UnitNode
    from .bitstream.performance import DecompositionMap as DecompositionMap
    from .bitstream.performance import DecompositionRow as DecompositionRow
    from .bitstream.performance import Performance as Performance
    from .bitstream.performance import PerformanceMaps as PerformanceMaps
    from .bitstream.performance import PruningMap as PruningMap
    from .bitstream.performance import PruningRow as PruningRow
    from .bitstream.performance import SparsificationMap as SparsificationMap
    from .bitstream.performance import SparsificationRow as SparsificationRow
    from .bitstream.performance import UnificationMap as UnificationMap
    from .bitstream.performance import UnificationRow as UnificationRow
    from .bitstream.summary import UnitInfo as UnitInfo
    from .bitstream.units import Unit as Unit
    from .compare import compare_models as compare_models
    from .config import EncoderConfig as EncoderConfig
    from .config import Rule as Rule
    from .conformance.digest import digest as digest
    from .conformance.report import Report as Report
    from .conformance.report import Violation as Violation
    from .conformance.selftest import SelfTest as SelfTest
    from .conformance.selftest import selftest as selftest
    from .decoder.index import NnrFile as NnrFile
    from .decoder.info import TensorInfo as TensorInfo
    from .decoder.state import UpdateState as UpdateState
    from .decoder.stream import StreamDecoder as StreamDecoder
    from .decoder.tools import Tool as Tool
    from .decoder.tools import requirements as requirements
    from .decoder.tools import tree as tree
    from .decoder.update import Update as Update
    from .decoder.update import UpdateDecoder as UpdateDecoder
    from .difference import diff as diff
    from .encoder.encode import TensorReport as TensorReport
    from .encoder.fixed import Saturation as Saturation
    from .encoder.fixed import SaturationWarning as SaturationWarning
    from .encoder.reduce.sparsify import sparsify as sparsify
    from .encoder.tune import Tuning as Tuning
    from .errors import BitstreamError as BitstreamError
    from .errors import ElementError as ElementError
    from .errors import EncodeError as EncodeError
    from .errors import EncodeWarning as EncodeWarning
    from .errors import FormatError as FormatError
    from .errors import IncompleteError as IncompleteError
    from .errors import LimitError as LimitError
    from .errors import MissingDependencyError as MissingDependencyError
    from .errors import MissingReferenceError as MissingReferenceError
    from .errors import NnrError as NnrError
    from .errors import PayloadError as PayloadError
    from .errors import TruncatedError as TruncatedError
    from .errors import UnsupportedError as UnsupportedError
    from .errors import WorkerError as WorkerError
    from .federated.apply import apply_update as apply_update
    from .federated.apply import identity as identity
    from .federated.chain import chain_updates as chain_updates
    from .federated.chain import squash_updates as squash_updates
    from .federated.feedback import ErrorFeedback as ErrorFeedback
    from .federated.update import UpdateEncoder as UpdateEncoder
    from .federated.update import encode_update as encode_update
    from .formats.nnef.rules import ModelFinding as ModelFinding
    from .formats.nnef.rules import ModelReport as ModelReport
    from .limits import Limits as Limits
    from .model import Block as Block
    from .model import Model as Model
    from .model import Topology as Topology
    from .reduction import Step as Step
    from .report.encoded import EncodeReport as EncodeReport
    from .report.reduced import Reduction as Reduction
    from .report.reduced import StepReport as StepReport
    from .sideinfo.record import SideInfo as SideInfo
    from .syntax import Session as Session
    from .topics import Topic as Topic
    from .topics import explain as explain

__version__ = "0.1.0"

_NAMES = {
    "api.bitstreams": "inspect units verify verify_model write_units",
    "api.decoding": "decode decode_file open",
    "api.encoding": "encode encode_file",
    "api.files": "load save",
    "api.prepared": "",
    "api.trials": "estimate folded measure reduce tune",
    "bitstream.aggregate": "extract",
    "bitstream.ndu": "write_ndu",
    "bitstream.nodes": "Node UnitNode",
    "bitstream.performance": "DecompositionMap DecompositionRow Performance PerformanceMaps PruningMap PruningRow "
    "SparsificationMap SparsificationRow UnificationMap UnificationRow",
    "bitstream.summary": "UnitInfo",
    "bitstream.units": "Unit",
    "compare": "Loss LossSummary compare_models",
    "config": "EncoderConfig Rule",
    "conformance.digest": "digest",
    "conformance.report": "Report Violation",
    "conformance.selftest": "SelfTest selftest",
    "decoder.index": "NnrFile",
    "decoder.info": "TensorInfo",
    "decoder.state": "UpdateState",
    "decoder.stream": "StreamDecoder",
    "decoder.tools": "Tool requirements tree",
    "decoder.update": "Update UpdateDecoder",
    "difference": "diff",
    "encoder.encode": "TensorReport",
    "encoder.fixed": "Saturation SaturationWarning",
    "encoder.reduce.sparsify": "sparsify",
    "encoder.tune": "Tuning",
    "errors": "BitstreamError ElementError EncodeError EncodeWarning FormatError IncompleteError LimitError "
    "LossWarning MissingDependencyError MissingReferenceError NnrError PayloadError TruncatedError UnsupportedError "
    "WorkerError",
    "federated.apply": "apply_update identity",
    "federated.chain": "chain_updates squash_updates",
    "federated.feedback": "ErrorFeedback",
    "federated.update": "UpdateEncoder encode_update",
    "formats.nnef.rules": "ModelFinding ModelReport",
    "limits": "Limits",
    "model": "Block Model Topology",
    "reduction": "Step",
    "report.encoded": "EncodeReport",
    "report.reduced": "Reduction StepReport",
    "sideinfo.record": "SideInfo",
    "syntax": "Session",
    "topics": "Topic explain",
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
