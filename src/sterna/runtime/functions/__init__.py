"""Data processing functions in processes of their own."""
