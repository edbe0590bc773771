"""The example as a Flower app: ``flwr run examples/federated`` (docs/flower.md)."""
