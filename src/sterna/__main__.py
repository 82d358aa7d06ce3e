"""`python -m sterna` is `sterna`."""

from sterna.cli.main import main

main()
