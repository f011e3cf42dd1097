"""Data: what the model is fed."""
