"""A client is moved while messages flow."""
