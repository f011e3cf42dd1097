"""Optimization wiring: the loop, the optimizer, the loss function."""
