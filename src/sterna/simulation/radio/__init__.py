"""A simulated radio channel with stations that move, after Castalia's model of a CC2420.  Needs numpy."""
