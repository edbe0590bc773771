"""Lossless bitstreams without their record: a unit with a tensor's name has that tensor, or its difference."""

from __future__ import annotations

from collections import Counter

import pytest

import nnr_codec as nnr

from .. import lossless


@pytest.mark.medium
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_units_with_the_names_of_tensors_hold_them(first: int) -> None:
    for seed in range(first, first + 50):
        model = lossless.model(seed)
        decoded = nnr.decode(nnr.encode(model, exact=True), raw=True).tensors
        assert lossless.wrong(decoded, lossless.all_numbers(model.tensors)) == [], seed


@pytest.mark.medium
@pytest.mark.parametrize("first", range(0, 100, 50))
def test_units_with_the_names_of_tensors_hold_their_differences(first: int) -> None:
    for seed in range(first, first + 50):
        base, new = lossless.update(seed)
        data = nnr.encode_update(base, new, lossless=True)
        decoded, want = nnr.UpdateDecoder().decode(data, raw=True), lossless.numbers_of_update(base, new, data)
        assert lossless.wrong(decoded, want) == [], seed


@pytest.mark.medium
def test_all_codes_are_among_them() -> None:
    models = [nnr.encode(lossless.model(seed), exact=True) for seed in range(50)]
    updates = [nnr.encode_update(*lossless.update(seed), lossless=True) for seed in range(50)]
    codes = Counter(info.code for data in [*models, *updates] for info in nnr.open(data).info.values())
    assert {"float", "integer", "raw", "palette", "grid", "delta"} <= codes.keys()
