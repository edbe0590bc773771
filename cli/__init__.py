"""The ``nnr`` command. It calls only public functions of nnr_codec and prints; no module imports it."""
