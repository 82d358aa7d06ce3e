"""Real nodes, real sockets, real client libraries: what a user of the node meets, and what survives its worst days."""
