"""Subscriptions that compute: the expressions of a broker, their windows, results and recovery."""
