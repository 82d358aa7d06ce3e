"""The audit: the nodes' records held against the delivery contract, message by message."""
