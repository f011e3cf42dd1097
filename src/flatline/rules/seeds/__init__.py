"""Seeds: random numbers that repeat, and runs that do not."""
