"""Links to other nodes on sockets: connections, bundles of them, datagrams, and a view of the network."""
