"""Gradients: their size along the depth, and clipping."""
