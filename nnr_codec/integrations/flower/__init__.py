"""Models and updates of Flower apps as NNR bitstreams: a mod for clients, a strategy around another one for servers.

>>> app = ClientApp(mods=[NNRMod()])                                                    # doctest: +SKIP
>>> strategy = NNRStrategy(FedAvg())                                                    # doctest: +SKIP

docs/guides/flower.md says what goes over the wire. The package flwr is needed, 1.41 or later (extra ``flower``).
"""

from __future__ import annotations

from .mod import NNRMod
from .strategy import NNRStrategy

__all__ = ["NNRMod", "NNRStrategy"]
