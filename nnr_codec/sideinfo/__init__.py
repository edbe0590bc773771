"""What models have and NNR cannot say: the side information of :doc:`docs/side-information.md`, and what it does to tensors."""
