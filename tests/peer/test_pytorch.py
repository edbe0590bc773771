"""NNCodec decodes bitstreams of PyTorch files that contain a dict of tensors."""

from __future__ import annotations

import io
from typing import Any

import pytest

import nnr_codec as nnr

from .conftest import Peer, assert_same_tensors

pytestmark = [pytest.mark.medium, pytest.mark.peer, pytest.mark.torch]


@pytest.mark.parametrize("options", [{}, {"qp": -20}], ids=str)
def test_a_flat_state(peer: Peer, options: dict[str, Any]) -> None:
    torch: Any = pytest.importorskip("torch", reason="the package torch (extra 'torch') is not installed")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.Linear(40, 30), torch.nn.LayerNorm(30))
    file = io.BytesIO()
    torch.save(dict(module.state_dict()), file)
    data = nnr.encode(file.getvalue(), **options)
    decoded = nnr.decode(data)
    assert decoded.format == "pytorch"
    (theirs,) = peer.decode(data)
    assert_same_tensors(theirs, dict(decoded.tensors))
