"""Tasks of encoding and decoding: a pool of workers for both, and a checkpoint of finished tasks."""
