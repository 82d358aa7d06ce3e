"""Where Debian's Mosquitto 2.0.11 answers otherwise: the test, and what Mosquitto does instead.

The tests stay true to the standard; with `STERNA_PEER=mosquitto` these are expected to fail.
"""

MOSQUITTO_FAILS: dict[str, str] = {}
