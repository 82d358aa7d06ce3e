"""Sterna: many MQTT nodes that look like one broker to every client."""

__version__ = "0.2.0"
