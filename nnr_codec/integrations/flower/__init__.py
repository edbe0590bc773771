"""Models and updates of Flower apps as NNR bitstreams: a mod for clients, and a wrapper of strategies for servers.

>>> app = ClientApp(mods=[NNRMod()])                                                    # doctest: +SKIP
>>> strategy = NNRStrategy(FedAvg())                                                    # doctest: +SKIP

docs/guides/flower.md describes the messages. Requires the package flwr, 1.41 or later (extra ``flower``).
"""

from __future__ import annotations

from .mod import NNRMod
from .strategy import NNRStrategy

__all__ = ["NNRMod", "NNRStrategy"]
