"""Serves a foreign broker as one persistent session of our own, turned inside out."""
