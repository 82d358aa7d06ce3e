"""Asks for a new password: at the terminal twice, or one line from stdin."""

from __future__ import annotations

import getpass
import sys


def ask_password() -> str:
    """ValueError if the two are not the same."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise ValueError("the two are not the same; nothing was changed")
    return password
