"""How property tests run: the same examples every time, and few enough that the whole suite stays quick.

`HYPOTHESIS_PROFILE=search` looks for new counterexamples instead: random, and many more of them.

JVMs that tests start need not be fast for long, only soon; `make test` leaves a file with Spark's classes for them.
"""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, settings

settings.register_profile(
    "steady", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", max_examples=2_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

_SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"{_SOON} -XX:SharedArchiveFile={sys.prefix}/spark.jsa")
