"""A step whose loss or gradient is not finite, run again on a copy. Loaded for ``flatline run --on-nan`` only."""
