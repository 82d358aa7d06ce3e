"""Load and its limits: how much work a broker does per CPU second, beside a peer in the same run."""
