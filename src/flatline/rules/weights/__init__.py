"""Weights and activations: their scale at the start, attention that narrows down to one key."""
