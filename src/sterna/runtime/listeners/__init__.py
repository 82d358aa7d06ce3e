"""The sockets that clients use: TCP, TLS, WebSocket and Unix, with their limits and the packet log."""
