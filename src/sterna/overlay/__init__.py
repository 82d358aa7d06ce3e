"""Who our neighbours are, and the links that carry frames to them; told the time, handed the dice, no sockets."""
