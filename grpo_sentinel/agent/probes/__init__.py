"""Probes: tensors in, a few statistics out. One file per layer, no state of the trainer kept, nothing synchronised."""
