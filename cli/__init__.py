"""The ``nnr`` command. It uses only the public functions of nnr_codec and prints; nothing imports it."""
