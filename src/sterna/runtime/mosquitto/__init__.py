"""Translates the configuration of a Mosquitto into that of a node."""
