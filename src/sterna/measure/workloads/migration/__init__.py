"""Crowds of clients that move between nodes."""
