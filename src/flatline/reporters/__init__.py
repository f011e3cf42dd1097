"""What the user reads: every reporter sees findings and nothing else."""
