"""Reads Python source by syntax alone: nothing is imported, nothing is run."""
