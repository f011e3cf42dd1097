"""Numerics: numbers that stop being numbers."""
