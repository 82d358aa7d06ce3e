"""Neighbours, and the links that carry frames to them.  Time and dice are handed in; there are no sockets."""
