"""`sterna ...`: one module per command."""
