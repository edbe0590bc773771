"""Tests that need the packages of heavy clients; .ci/run has an environment for them."""
