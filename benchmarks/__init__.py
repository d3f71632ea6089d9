"""Figures that the product promises, measured on this machine: `python -m benchmarks [name ...]`."""
