"""Authentication and authorization of clients: passwords, tokens, access rules."""
