"""Tests that need a program of the system are left out where there is none.  In CI they fail, so that it is noticed."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def leave_out(reason: str) -> NoReturn:
    """`reason` names the program and how it is installed.  CI services set the variable `CI`."""
    if os.environ.get("CI", "") not in ("", "0", "false"):
        pytest.fail(f"{reason} (CI is set, so that this test must not be left out)", pytrace=False)
    pytest.skip(reason)
