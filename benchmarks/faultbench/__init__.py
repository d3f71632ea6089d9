"""FaultBench: known faults in real training runs, and what the sentinel and its peers make of them."""
