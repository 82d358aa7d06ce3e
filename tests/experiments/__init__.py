"""Tests of the experiments: their parts without sockets, and each of them once, small, with real processes."""
