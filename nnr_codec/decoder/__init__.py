"""The decoding process, clause 7 of ISO/IEC 15938-17:2024; independent of encoder choices."""
