"""One client's session and its connection: subscriptions, queue, outbox, and how a session is written down."""
