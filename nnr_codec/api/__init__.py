"""Library functions. Only this package combines formats, encoder and decoder."""
