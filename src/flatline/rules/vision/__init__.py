"""Vision: normalisation over batches, images and their labels."""
