"""Updates of models: differences, their coding, and their application."""
