"""What decoders and bitstreams are held against: digests of tensors, vectors, and the requirements of the standard."""
