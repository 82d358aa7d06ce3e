"""How many bytes pass between brokers."""
