"""Which node serves which clients, and which nodes run: pictures of the network in, decisions with reasons out."""
