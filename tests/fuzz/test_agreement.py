"""The comparison of all ways of decoding has no finding for the seeds, and detects each planted disagreement."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnr_codec as nnr
from nnr_codec.constants import NNR_PT_RAW_FLOAT
from nnr_codec.decoder import index, stream, update_sequence
from nnr_codec.errors import NnrError
from nnr_codec.model import Array

from ..builder import Bitstream, ndu
from . import agreement, seeds
from .agreement import agree
from .seeds import Seed


@pytest.mark.medium
def test_ways_agree_on_seeds(record_property: Callable[[str, object], None]) -> None:
    corpus = [seed for seed in seeds.corpus() if not seed.name.startswith("nncodec")]
    chosen = random.Random(15938).sample(corpus, 250)
    valid = sum(_decodes(seed) for seed in chosen)
    assert 50 < valid < 250
    record_property("figure: seeds that all ways of decoding are compared with", len(chosen))


def _decodes(seed: Seed) -> bool:
    try:
        agree(seed.data, seed, random.Random(seed.name))
    except NnrError:
        return False
    return True


def matrix(values: int = 6) -> Seed:
    """Return a matrix of ones whose unit has this number of values; it needs six."""
    stream = Bitstream().str_().mps()
    payload = np.ones(values, "<f4").tobytes()
    return Seed(f"matrix-{values}", stream.ndu(ndu("w", [2, 3], kind=NNR_PT_RAW_FLOAT), payload=payload).data)


def test_decoded_and_rejected_inputs_agree() -> None:
    assert _decodes(matrix())
    assert not _decodes(matrix(5))
    assert not _decodes(Seed("nothing", b"", before=(matrix().data,)))


class Chosen(random.Random):
    """Generator that selects all optional parts."""

    def randrange(self, *_: Any) -> int:
        """Return the first number."""
        return 0


def _changed(tensor: Array) -> Array:
    return np.asarray(tensor + 1)


PLANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def plant(name: str) -> Callable[[Callable[[pytest.MonkeyPatch], None]], None]:
    """Register a disagreement, by the beginning of its message."""

    def register(change: Callable[[pytest.MonkeyPatch], None]) -> None:
        PLANTS[name] = change

    return register


@plant("of a file: other results")
def _(patch: pytest.MonkeyPatch) -> None:
    decode = nnr.decode

    def changed(data: Any, **options: Any) -> nnr.Model:
        model = decode(data, **options)
        return model if isinstance(data, bytes) else nnr.Model({"w": _changed(model["w"])})

    patch.setattr(nnr, "decode", changed)


@plant("in threads: ")
def _(patch: pytest.MonkeyPatch) -> None:
    decode = nnr.decode

    def changed(data: Any, jobs: int = 1, **options: Any) -> nnr.Model:
        return decode(data if jobs == 1 else data[:-1], **options)

    patch.setattr(nnr, "decode", changed)


@plant("open: other tensors")
def _(patch: pytest.MonkeyPatch) -> None:
    get, rows = nnr.NnrFile.__getitem__, nnr.NnrFile.rows
    patch.setattr(index.NnrFile, "__getitem__", lambda *given: _changed(get(*given)))
    patch.setattr(index.NnrFile, "rows", lambda *given: _changed(rows(*given)))


@plant("rows of 'w': other results")
def _(patch: pytest.MonkeyPatch) -> None:
    rows = nnr.NnrFile.rows
    patch.setattr(index.NnrFile, "rows", lambda *given: _changed(rows(*given)))


@plant("names: ")
def _(patch: pytest.MonkeyPatch) -> None:
    def refuse(self: object) -> None:
        raise nnr.UnsupportedError("no names")

    patch.setattr(index.NnrFile, "__iter__", refuse)


@plant("StreamDecoder by ")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream.StreamDecoder, "_end", lambda self: iter(()))
    patch.setattr(stream.StreamDecoder, "_tensors_of", lambda *_: iter(()))


@plant("UpdateDecoder: other tensors")
def _(patch: pytest.MonkeyPatch) -> None:
    decode = update_sequence.UpdateDecoder.decode
    patch.setattr(
        update_sequence.UpdateDecoder, "decode", lambda *given: nnr.Update({"w": _changed(decode(*given)["w"])})
    )


@plant("verify: ElementError planted of what decodes")
def _(patch: pytest.MonkeyPatch) -> None:
    verify = nnr.verify

    def found(*given: Any, **options: Any) -> Any:
        report = verify(*given, **options)
        agreement.ReportBuilder(nnr.Limits()).refuse(nnr.ElementError("planted"), None, "")
        return report

    patch.setattr(nnr, "verify", found)


@pytest.mark.parametrize("words", PLANTS)
def test_disagreements_are_found(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTS[words](monkeypatch)
    with pytest.raises(AssertionError, match=f"^{words}"):
        agree(matrix().data, matrix(), Chosen(0))


def test_a_refusal_without_a_violation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    intact = nnr.verify(matrix().data)
    monkeypatch.setattr(nnr, "verify", lambda *_, **__: intact)
    with pytest.raises(AssertionError, match=r"^verify: no violation of what is refused: .*PayloadError"):
        agree(matrix(5).data, matrix(5), Chosen(0))


def test_a_refusal_by_one_way_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise nnr.ElementError("planted")

    monkeypatch.setattr(stream.StreamDecoder, "feed", refuse)
    with pytest.raises(AssertionError, match=r"^StreamDecoder by .*: a result, \('ElementError', 'planted'\)"):
        agree(matrix().data, matrix(), Chosen(0))
