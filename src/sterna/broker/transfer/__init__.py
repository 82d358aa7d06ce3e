"""A session leaves for another node, or arrives from one, with the state of its expressions."""
