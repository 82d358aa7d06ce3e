"""What a gateway owes the clients beside it: one steady connection, whatever becomes of the nodes behind it.

A gateway is no broker: packets pass through it as they are, with the identifiers their sender gave them.  It keeps what
is not yet acknowledged, in both directions, and so can go on with another node where the last one left off.
"""
