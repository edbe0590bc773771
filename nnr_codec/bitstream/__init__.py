"""Units and payloads: how syntax structures and coded tensors become an NNR bitstream, and back."""
