"""Updates of models: differences, what is coded of them, and the models that come of them."""
