"""Federated training with compressed updates: ``python -m benchmarks.federated --peer PYTHON``.

A simulation of Flower trains a network with ten clients for 15 rounds, once for each method and split of the training
samples. Each round appends a row to the file of results: bytes from and to the clients, and the accuracy with a 95 %
interval. Finished runs are not repeated. Without ``--peer``, NNCodec is left out.

All runs of a network and a seed start from the same weights, trained for two epochs, and draw the same samples. In each
round, a client trains with 500 of its samples. Updates of ours are sent by NNRMod and NNRStrategy. The other methods
replace the trained model by the model that a server would restore from the coded update; models are sent to clients as
float32.
"""
