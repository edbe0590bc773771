"""Blocks and prunable channels of the graph of a network, found once for all formats.

Formats build a :class:`~.graph.Graph` of a topology; :mod:`.blocks` and :mod:`.channels` know nothing of formats.
"""
