"""A node on asyncio and uvloop.  All sockets, files, clocks and threads are in this package."""
