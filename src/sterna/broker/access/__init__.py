"""Who a client is and what it may do: authentication, passwords and tokens, access rules."""
