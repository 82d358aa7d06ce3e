"""Programs of the operator's own that decide who comes in, and what they may do."""
