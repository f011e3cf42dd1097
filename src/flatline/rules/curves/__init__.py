"""Curves: what a logged loss shows by its shape."""
