"""Synchronization of weights: a learner publishes a model after each step, and workers follow it.

>>> publisher = Publisher("/shared/run7")                                               # doctest: +SKIP
>>> publisher.publish(network)                                                          # doctest: +SKIP

In another process:

>>> subscriber = Subscriber("/shared/run7")                                             # doctest: +SKIP
>>> if subscriber.poll():                                                               # doctest: +SKIP
...     subscriber.load_into(replica)

See docs/guides/sync.md.
"""

from .publisher import Publication, Publisher
from .records import Record
from .subscriber import Subscriber

__all__ = ["Publication", "Publisher", "Record", "Subscriber"]
