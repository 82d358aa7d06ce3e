"""Which neighbours want a topic, and how a message finds its way.  No sockets, no clock, no dice."""
