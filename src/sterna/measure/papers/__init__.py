"""Experiments of published papers, repeated with real processes."""
