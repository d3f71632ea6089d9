"""Checks that run a model: the only part of preflight that imports torch, loaded by name when a model is given."""
