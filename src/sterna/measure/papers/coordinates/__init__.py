"""How well coordinates estimate round trips, and whom a gateway must measure to find its neighbour."""
