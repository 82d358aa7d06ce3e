"""The interworking core, in the simulator."""
