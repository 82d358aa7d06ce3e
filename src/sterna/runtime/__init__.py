"""A node on asyncio and uvloop: all sockets, files, clocks and threads live here."""
