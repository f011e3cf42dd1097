"""Precision: float16 and bfloat16, and what they round away."""
