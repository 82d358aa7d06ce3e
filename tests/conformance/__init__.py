"""Conformance of a live broker to MQTT 3.1.1 and 5.0, numbered by subject.

Every test is a conversation: packets sent, packets expected.  `STERNA_PEER=mosquitto` runs the same
conversations against Mosquitto, which shows that the tests themselves are right.  Clauses such as [MQTT-3.1.0-1]
and section numbers are those of 5.0, unless 3.1.1 is named.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.client", f"{__name__}.packets", f"{__name__}.properties")
