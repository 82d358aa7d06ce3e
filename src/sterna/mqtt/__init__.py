"""The MQTT standard, 3.1.1 and 5.0: packets, bytes, topics.  Knows no broker, no socket, no clock."""
