"""Syntax tables of clause 6 of ISO/IEC 15938-17:2024, shared by reading, writing, counting, tracing and sampling."""

from __future__ import annotations

from . import tables as _tables  # registers the tables with their structures
from .bitio import BitCounter, BitReader, BitWriter
from .coder import TABLES, Descriptor, Reader, Sampler, SampleReader, Structure, Trace, Writer
from .session import Session

__all__ = [
    "TABLES",
    "BitCounter",
    "BitReader",
    "BitWriter",
    "Descriptor",
    "Reader",
    "SampleReader",
    "Sampler",
    "Session",
    "Structure",
    "Trace",
    "Writer",
]
del _tables
