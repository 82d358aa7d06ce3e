"""Bytes between brokers, captured or relayed, and accounted for by what they carry."""
