"""Modes: train and eval, in the wrong phase."""
