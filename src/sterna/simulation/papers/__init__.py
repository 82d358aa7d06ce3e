"""Protocols of a thesis on brokers that move, kept for comparison: none of them runs in a node."""
