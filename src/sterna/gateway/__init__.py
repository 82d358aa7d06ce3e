"""A gateway gives the clients beside it one steady connection while the nodes behind it come and go.

A gateway is no broker: packets pass through it as they are, with the identifiers their sender gave them.  It keeps what
is not yet acknowledged, in both directions, and so can go on with another node where the last one left off.
"""
