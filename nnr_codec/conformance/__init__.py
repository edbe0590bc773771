"""Conformance testing of decoders and bitstreams: tensor digests, vectors, and the requirements of the standard."""
