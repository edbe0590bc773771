"""Integrations with other packages, which are optional dependencies and imported on use."""
