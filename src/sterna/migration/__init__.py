"""How a client's session changes its node, and who owns it meanwhile.

The messages of the protocol (`messages`), what each side does when it hears one (`tables`, `move_side`), who owns which
session (`directory`, `owner_news`), and the rules beside a move: the order of a publisher's messages
(`publisher_order`), identifiers whose sessions nobody keeps (`transient_claims`), nodes that are away (`node_absence`)
or have just been started (`restart_grace`).  Nothing here knows a broker or a link, only a `move_host`.
`node/departure.py` and `node/arrival.py` do to the broker's sessions what the tables say; `node/move_manager.py` puts
all of it together.

*Invariant: of a session's nodes at most one serves it, and whoever no longer does hands over what it still owed.*
"""
