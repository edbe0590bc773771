"""Speed, memory and size, compared with NNCodec: ``python -m benchmarks.compare --peer /path/to/its/python``."""
