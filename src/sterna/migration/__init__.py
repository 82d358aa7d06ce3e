"""How a client's session changes its node, and who owns it meanwhile.

`move_manager` puts the parts together.  `departure` and `arrival` are the two sides of one move; `tables` says what
each side does next, `messages` what they say to each other, and `move_dispatch` gives each message to its handler.
`planned_moves` carries out an operator's orders.  `directory` and `owner_news` know who owns which session.
`new_sessions` and `fenced_sessions` are for clients whose node is away.  Rules beside a move have modules of their own:
the order of a publisher's messages (`publisher_order`), identifiers whose sessions nobody keeps (`transient_claims`),
nodes that are away (`node_absence`) or have just been started (`restart_grace`), numbers of moves that came to nothing
(`spent_numbers`), messages that a new owner read before the session came (`missed_messages`).  `move_host` is the
node as its moves see it: the calls that they make, and no others.

*Invariant: of a session's nodes at most one serves it, and a node that no longer does hands over what it still owed.*
"""
