"""The made-up world: the same nodes in virtual time, with links, disks and clocks that fail when the dice say so."""
