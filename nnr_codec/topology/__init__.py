"""Detection of blocks and prunable channels in the graph of a network, independent of formats.

Formats convert a topology to a :class:`~.graph.Graph`, on which :mod:`.blocks` and :mod:`.channels` operate.
"""
