"""The library's functions: the only place that joins formats, encoder and decoder."""
