"""Federated training with compressed updates: ``python -m benchmarks.federated --peer PYTHON``.

A simulation of Flower trains a network with ten clients for 15 rounds, once for each method and split of the training
samples. Each round appends a row to the file of results: bytes from and to the clients, and the accuracy with a 95 %
interval. Finished runs are not repeated. Without ``--peer``, NNCodec is left out.

All runs of a network and a seed start from the same weights, trained for two epochs, and draw the same samples. In each
round, a client trains with 500 of its samples. NNRMod and NNRStrategy send the updates that nnr_codec encodes. Other
methods replace the trained model with the model that a server would restore from the coded update, and send models to
clients as float32.
"""
