"""The gateway's core in a made-up town: clients, nodes and wires that do as they are told."""
