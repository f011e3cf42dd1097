"""Checkpoints, adapters and frozen layers."""
