"""How much a coordinator's decisions cost."""
