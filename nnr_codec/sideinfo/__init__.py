"""What models have and NNR cannot say: the record of docs/side-information.md, and what it does to tensors."""
