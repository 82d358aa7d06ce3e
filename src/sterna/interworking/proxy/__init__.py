"""Proxy mode: clients reach the foreign broker through the node, and their publications are witnessed."""
