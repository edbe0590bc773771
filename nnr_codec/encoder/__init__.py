"""Encoder: a model becomes the units of a bitstream. All choices are made here; decoders rely on none of them.

The way of a model, with the type that each step returns:

1. ``reduce`` applies parameter reduction to a ``Model``: ``Prepared``.
2. ``goals`` and ``rate_allocation`` turn quality and target sizes in an ``EncoderConfig`` into steps of tensors.
3. ``facts`` collects what decides the coding of one tensor: ``TensorFacts``.
4. ``planning`` chooses its coding, quantizer and tools: ``TensorPlan``.
5. ``unit_layout`` joins tensors to compressed data units, of which ``blocks`` says what one can hold: ``UnitPlan``.
6. ``quantization`` makes levels, and ``coding_tools`` chooses what codes them: ``CodedTensor``.
7. ``coded_unit`` writes headers and payloads: ``CodedUnit``. ``preamble`` writes the units before them.
8. ``encode`` runs all of this in a pool, yields bytes, and reports each tensor: ``TensorReport``.
"""
