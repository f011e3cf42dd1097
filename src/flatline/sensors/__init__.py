"""Live torch objects in, events out. Tensors stop here."""
