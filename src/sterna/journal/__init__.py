"""The journal: every message worth keeping, in order, with a checksum.

Decides the bytes; a store elsewhere keeps them.
"""
