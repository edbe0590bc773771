"""From tensors to units: choices only, nothing that a decoder relies on."""
