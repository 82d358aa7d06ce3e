"""How a client's session changes its node, and who owns it meanwhile.

The words of the protocol (`messages`), what each side does when it hears one (`tables`), and who owns which session
(`directory`).  Nothing here knows a broker or a link: `node/move_manager.py` does what the tables say.

*Invariant: of a session's nodes at most one serves it, and whoever no longer does hands over what it still owed.*
"""
