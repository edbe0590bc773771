"""Encoder: conversion of a model to the units of a bitstream. Decoders do not depend on any choice of the encoder.

Steps of encoding, with the type that each step returns:

1. ``reduce`` applies parameter reduction to a ``Model``: ``Prepared``.
2. ``goals`` and ``rate_allocation`` convert quality and target sizes in an ``EncoderConfig`` to step sizes of tensors.
3. ``facts`` collects the properties of one tensor on which its coding depends: ``TensorFacts``.
4. ``planning`` chooses its coding, quantizer and tools: ``TensorPlan``.
5. ``unit_layout`` assigns tensors to compressed data units, and ``block_units`` the tensors of a block: ``UnitPlan``.
6. ``quantization`` computes levels, and ``coding_tools`` chooses the tools that code them: ``CodedTensor``.
7. ``coded_unit`` writes headers and payloads: ``CodedUnit``. ``preamble`` writes the units before them.
8. ``encode`` runs these steps in a pool, yields bytes, and reports each tensor: ``TensorReport``.
"""
