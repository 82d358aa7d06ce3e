"""The interworking layer of Banno et al. (ILDM): its API and algorithms as a reference, and its benchmark."""
