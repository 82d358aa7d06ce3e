"""Tests of the interworking layer of Banno et al. and of its benchmark."""
