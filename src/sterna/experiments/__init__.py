"""Experiments of the papers this project builds on, repeated with real processes and printed beside their figures."""
