"""One test for each threat to a decoder, T1 to T34 and T44 to T46, with the check of the product that it stands for."""
