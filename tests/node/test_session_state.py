"""The state of a session is one record: a crash and a move bring all of it back, and links check every field of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.surviving_node import SurvivingNode
from node.joined_nodes import Town
from sterna.broker.beginning import Beginning
from sterna.broker.session import stored_session
from sterna.broker.session.session import Session
from sterna.broker.session.session_log import SessionEvent
from sterna.broker.session.stored_session import StoredSession
from sterna.broker.session.subscriptions import Grant
from sterna.journal.session_state import BeginningState, SessionState
from sterna.migration import messages
from sterna.migration.messages import HandOverPage, MigSync
from sterna.vocabulary.errors import JournalError, LinkProtocolError
from sterna.vocabulary.identity import Stamp

BEFORE = BeginningState(
    number=3,
    after=2,
    is_clean=False,
    is_told=True,
    since=[(b"t", [("C", 1, 4)])],
    early=[],
    left_to_old=[],
    resumed=[],
    taken_over=[],
    before=[],
    went_back=[],
    began_at=0.0,
)
BEGINNING = BeginningState(
    number=9,
    after=7,
    is_clean=True,
    is_told=True,
    since=[(b"t", [("C", 1, 5), ("D", 2, 6)])],
    early=[("C", 1, 4)],
    left_to_old=[("D", 2, 3)],
    resumed=[("E", 1, 1)],
    taken_over=[("D", 7)],
    before=[BEFORE],
    went_back=[("D", 6)],
    began_at=12.5,
)
STATE = SessionState(
    expiry_s=3600,
    will=(b"will/topic", b"gone", 1, True, 5, 60, b"", True),
    next_packet_id=77,
    received=[5, 9],
    sequence=(4, 2),
    dropped_by_retention=3,
    dropped_by_full_queue=8,
    beginning=BEGINNING,
)


def differing(one: msgspec.Struct, other: msgspec.Struct) -> set[str]:
    return {name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)}


def absent_client(node: SurvivingNode) -> Session:
    client = node.client("c")
    client.subscribe("t", 1)
    node.settle()
    client.vanish()
    node.settle()
    return node.broker.sessions[b"c"]


def test_the_examples_leave_no_field_out() -> None:
    session = absent_client(SurvivingNode())
    session.expiry_s = 0
    assert differing(STATE, session.state()) == set(SessionState.__struct_fields__)
    assert differing(BEGINNING, Beginning(0, 0).state()) == set(BeginningState.__struct_fields__)


@pytest.mark.parametrize("by", ["checkpoint", "journal"])
def test_a_crash_brings_all_of_it_back(by: str) -> None:
    node = SurvivingNode()
    session = absent_client(node)
    new = stored_session.decode(stored_session.encode(session))
    grant = Grant(1, True, (3,))
    for offset in (0, 1, 2, 17):
        session.queue.push(offset, grant)
    session.restore(STATE)
    session.version = 4 + (new.version == 4)
    session.user = "somebody"
    session.disconnected_at += 1
    session.opened_wall += 1
    session.life, session.number, session.leaving = 12, 34, ("B", 35)
    session.barrier, session.told = {"C": Stamp(1, 2)}, {"$AVG/t": Stamp(3, 4)}
    session.came = (2, "C", 1, 2)
    session.inflight[6] = None
    stored = stored_session.encode(session)
    same = set(StoredSession.__struct_fields__) - differing(stored_session.decode(stored), new)
    assert same == {"subscriptions"}, "every other field is put to the test"
    if by == "checkpoint":
        node.broker.log.touched(session)
        node.checkpoint()
    else:
        node.broker.log.imported(session)
        node.settle()
    node.crash()
    again = node.broker.sessions[b"c"]
    assert again is not session
    assert again.state() == STATE
    assert stored_session.encode(again) == stored


def test_a_move_brings_all_of_it_along() -> None:
    town = Town("AB")
    town.connect("AB")
    town["A"].resume("c").vanish()
    town["A"].session("c").restore(STATE)
    town["A"].network.moving.plans.move(b"c", "B")
    town.pass_time(1)
    assert b"c" not in town["A"].broker.sessions
    arrived = town["B"].session("c").state()
    assert arrived.beginning is not None
    here = msgspec.structs.replace(BEGINNING, began_at=arrived.beginning.began_at)  # by the time that B has run
    assert arrived == msgspec.structs.replace(STATE, beginning=here)
    age_s = town["A"].broker.running_clock - BEGINNING.began_at
    assert town["B"].broker.running_clock - here.began_at == pytest.approx(age_s, abs=1)
    town.crash("B")
    assert town["B"].session("c").state() == arrived


def old_record(record: bytes) -> bytes:
    """As an earlier version wrote it: fields in a row that begins with the version of MQTT."""
    return msgspec.msgpack.encode([5, 3600, None, 0.0, None, [], 1, [], [], [], [], 0, 0, [-1, -1], 0, 0])


def torn(record: bytes) -> bytes:
    return record[:-1]


@pytest.mark.parametrize("other", [old_record, torn])
@pytest.mark.parametrize("by", ["checkpoint", "journal"])
def test_a_record_that_is_something_else_is_refused_by_name(by: str, other: Any) -> None:
    node = SurvivingNode()
    session = absent_client(node)
    node.broker.log.touched(session)
    node.checkpoint()
    record = other(node.disk.sessions["c"])
    if by == "checkpoint":
        node.disk.sessions["c"] = record
    else:
        node.broker.log._note(msgspec.msgpack.encode((SessionEvent.IMPORTED, b"c", record)))
        node.settle()
    with pytest.raises(JournalError, match=r"session 'c' cannot be read .*; run the version of Sterna that wrote it"):
        node.crash()


NONSENSE: list[tuple[str, Any]] = [
    ("expiry_s", -1),
    ("expiry_s", 2**32),
    ("will", (b"a/#", b"", 1, False, 0, None, b"", False)),
    ("will", (b"\xff", b"", 1, False, 0, None, b"", False)),
    ("will", (b"a", b"", 3, False, 0, None, b"", False)),
    ("next_packet_id", 65_536),
    ("received", [65_536]),
    ("sequence", (-2, 0)),
    ("dropped_by_retention", -1),
    ("dropped_by_full_queue", 2**63),
    ("beginning", []),
    ("beginning", [1, 2, 3]),
]
NONSENSE_OF_BEGINNINGS: list[tuple[str, Any]] = [
    ("number", 2**63),
    ("after", -1),
    ("is_clean", 1),
    ("is_told", None),
    ("since", [(b"t", [("C", 1)])]),
    ("early", [("C", 2**32, 1)]),
    ("left_to_old", [("C" * 65, 1, 1)]),
    ("resumed", [("C", 1, 2**63)]),
    ("taken_over", [("C", 2**63)]),
    ("before", [[]]),
    ("went_back", [5]),
    ("began_at", -1.0),
]


def with_field(record: msgspec.Struct, name: str, value: Any) -> list[Any]:
    return [value if field == name else getattr(record, field) for field in record.__struct_fields__]


def said(session: Any = STATE, beginning: Any = BEGINNING) -> list[bytes]:
    """MIGSYNC and a page of a hand-over, whatever is in them."""
    return [
        messages.encode([5, b"c", 1, 0, [], [], session, 0.0, []]),
        messages.encode([13, b"c", 1, 0, [], [], beginning]),
    ]


def test_the_examples_are_understood() -> None:
    sync, page = map(messages.decode, said())
    assert sync == MigSync(b"c", 1, 0, [], [], STATE)
    assert page == HandOverPage(b"c", 1, 0, [], [], BEGINNING)


@pytest.mark.parametrize(("name", "value"), NONSENSE)
def test_a_state_that_cannot_be_is_refused(name: str, value: Any) -> None:
    sync, _ = said(session=with_field(STATE, name, value))
    with pytest.raises(LinkProtocolError):
        messages.decode(sync)


@pytest.mark.parametrize(("name", "value"), NONSENSE_OF_BEGINNINGS)
def test_a_beginning_that_cannot_be_is_refused_wherever_it_is_said(name: str, value: Any) -> None:
    beginning = with_field(BEGINNING, name, value)
    for body in (said(session=with_field(STATE, "beginning", beginning))[0], said(beginning=beginning)[1]):
        with pytest.raises(LinkProtocolError):
            messages.decode(body)


def test_every_field_has_nonsense_that_is_refused() -> None:
    assert {name for name, _ in NONSENSE} == set(SessionState.__struct_fields__)
    assert {name for name, _ in NONSENSE_OF_BEGINNINGS} == set(BeginningState.__struct_fields__)
