"""Random schedules of faults; ``python -m tests.sync.schedules`` runs thousands of them."""

from __future__ import annotations

from collections import Counter

import pytest

from ..shared import examples
from .schedules import KINDS, run

pytestmark = pytest.mark.medium


@pytest.mark.parametrize("kind", KINDS)
def test_subscribers_have_a_published_version_after_each_action(kind: str) -> None:
    for seed in range(examples(250)):
        try:
            run(kind, seed, Counter())
        except Exception as error:
            error.add_note(f"schedule {seed} of a {kind}")
            raise
