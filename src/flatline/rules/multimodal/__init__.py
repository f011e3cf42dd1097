"""Several kinds of input at once: images beside text."""
