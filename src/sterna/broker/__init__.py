"""One broker's duties: sessions, subscriptions, delivery, retained messages, wills, permissions.  No I/O, no clock."""
