"""Language models: labels, masks, positions."""
