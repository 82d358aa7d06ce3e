"""The live tests run the compiled modules, wherever they can be compiled."""

from __future__ import annotations

import os
import shutil

import pytest

import sterna.broker.delivery.delivery
import sterna.broker.session.connection
import sterna.gateway.client

from .left_out import leave_out


@pytest.mark.skipif("STERNA_TEST_COMPILED" not in os.environ, reason="only `make test` promises compiled modules")
def test_the_hot_modules_are_compiled() -> None:
    if not shutil.which("cc"):
        leave_out("without a C compiler the node runs interpreted; as root: apt-get install gcc libc6-dev")
    for module in (sterna.broker.session.connection, sterna.broker.delivery.delivery, sterna.gateway.client):
        assert module.__file__ is not None
        assert module.__file__.endswith(".so"), "see .venv/compile.log"
