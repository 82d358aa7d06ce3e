"""A node never loads pandas, whether it is installed or not."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from sterna.runtime.without_pandas import do_without_pandas
from sterna.journal.audit_columns import session_batch
from sterna.journal.audit_records import SessionRecord
do_without_pandas()
assert session_batch([SessionRecord("started", 1.0)]).num_rows == 1
print("pandas" in sys.modules)
import pandas
print(pandas.DataFrame({"a": [1]}).shape)
"""


def test_writing_a_group_does_not_load_pandas_and_others_still_can() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=240)
    assert run.stdout.split("\n")[:2] == ["False", "(1, 1)"], run.stderr
