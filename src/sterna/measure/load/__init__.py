"""The load: clients with packet code of their own, and the generator that drives them."""
