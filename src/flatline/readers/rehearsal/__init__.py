"""Goes through a script as Python would, with objects that are known by how they were made; nothing of it is run."""
