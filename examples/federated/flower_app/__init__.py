"""The example as a Flower app: ``flwr run examples/federated`` (docs/guides/flower.md)."""
