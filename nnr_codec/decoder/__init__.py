"""The decoding process, clause 7 of ISO/IEC 15938-17:2024. It knows nothing of what an encoder may choose."""
