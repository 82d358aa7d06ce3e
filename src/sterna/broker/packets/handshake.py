"""The handshake from CONNECT to CONNACK: authenticates the client, admits it, opens its session.

Authentication may take more than one step (a password hash worked out in a thread, an exchange of AUTH packets); the
connection holds its further packets back until the answer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

from sterna.broker.access.access_control import AccessControl
from sterna.broker.access.authentication import Authenticator
from sterna.broker.access.authorization import AccessList, AccessRule, Permissions
from sterna.broker.access.bridges import may_publish
from sterna.broker.access.identity import FOREIGN_PREFIX, RELAYED_PREFIX, Accepted, Challenge, Credentials, Refused
from sterna.broker.access_renewal import AccessRenewal
from sterna.broker.broker_state import BrokerState
from sterna.broker.clock import BrokerClock
from sterna.broker.commitments import Commitments
from sterna.broker.deadlines import Deadlines
from sterna.broker.delivery.delivery import Delivery
from sterna.broker.network import Keeper
from sterna.broker.operator_reports import OperatorReports
from sterna.broker.session.connection import Connection, ConnectionState
from sterna.broker.session.session import Session
from sterna.broker.session.session_quotas import will_size
from sterna.broker.session_lifecycle import WATCH_S, SessionLifecycle
from sterna.mqtt import packets
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import BRIDGE, MQTT_3_1_1, MQTT_5, Connect, check_topic_name, encode_auth, encode_connack
from sterna.mqtt.properties import Properties
from sterna.mqtt.reasons import CONNACK_3_1_1, Reason
from sterna.mqtt.topics import is_control
from sterna.vocabulary.errors import ProtocolError

#: Receive Maximum of a server that says none (section 3.2.2.3.3).
RECEIVE_MAXIMUM_IF_UNSAID = 65535
#: Properties that CONNACK may leave out for a client of small packets: it then uses no aliases, and learns how large
#: its own packets may be when one was larger.
_DISPENSABLE = (prop.TOPIC_ALIAS_MAXIMUM, prop.MAXIMUM_PACKET_SIZE)


class Checked(NamedTuple):
    """A client may come in, as things stood when it was looked at."""

    permissions: Permissions
    answer: bytes
    """The CONNACK, if its session is there."""
    authenticator: Authenticator
    rules: AccessList
    granted: Sequence[AccessRule] | None


class ConnectHandshake:
    __slots__ = (
        "_access",
        "_clock",
        "_commitments",
        "_counters",
        "_deadlines",
        "_delivery",
        "_holdings",
        "_lifecycle",
        "_limits",
        "_renewal",
        "_reports",
        "_rng",
        "_sessions",
        "_verify_elsewhere",
        "keeper",
    )

    def __init__(
        self,
        state: BrokerState,
        clock: BrokerClock,
        deadlines: Deadlines,
        rng: Random,
        access: AccessControl,
        renewal: AccessRenewal,
        lifecycle: SessionLifecycle,
        commitments: Commitments,
        delivery: Delivery,
        reports: OperatorReports,
        verify_elsewhere: Callable[[Connection, Credentials], None],
    ) -> None:
        self._limits = state.limits
        self._sessions = state.sessions
        self._holdings = state.holdings
        self._counters = state.counters
        self._clock = clock
        self._deadlines = deadlines
        self._rng = rng
        self._access = access
        self._renewal = renewal
        self._lifecycle = lifecycle
        self._commitments = commitments
        self._delivery = delivery
        self._reports = reports
        self._verify_elsewhere = verify_elsewhere
        #: Makes sure that one node owns a session; a lone node needs none.
        self.keeper: Keeper | None = None

    def learn_version(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        """The level stands at a fixed place, so that even a CONNECT broken further on is refused in its own version."""
        if connection.version:
            return
        if data[body : body + 6] == b"\x00\x04MQTT" and body + 6 < stop:
            # A bridge of an older kind understands no other refusal than that of 3.1.1.
            connection.version = MQTT_5 if MQTT_5 <= data[body + 6] < BRIDGE else MQTT_3_1_1
        elif data[body : body + 8] == b"\x00\x06MQIsdp":
            connection.version = MQTT_3_1_1

    def connect(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        request = packets.decode_connect(data, body, stop, self._limits.user_properties)
        connection.is_3_1, connection.bridge = request.is_3_1, request.is_bridge
        self._check_will(request)
        if len(request.client_id) > self._limits.client_id_bytes:
            raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "client identifier is too long")
        if not request.client_id:
            request = self._with_client_id(request)
        connection.connect = request
        connection.enter(ConnectionState.AUTHENTICATING)
        if connection.peer.is_ours:
            self.verified(connection, Accepted(request.username))
            return
        for prefix in (FOREIGN_PREFIX, RELAYED_PREFIX):
            if request.client_id.startswith(prefix.encode()):
                text = f"client identifiers that begin with {prefix} are reserved"
                raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, text)
        self._renewal.check_ban(connection, request.client_id.decode(), request.username)
        credentials = Credentials(
            request.client_id.decode(),
            request.username,
            request.password,
            connection.peer.certificate_name,
            connection.peer.entrance.anonymous,
        )
        authenticator = self._access.authenticator
        method = request.properties.get(prop.AUTHENTICATION_METHOD)
        if method is not None:
            presumed = authenticator.presumed(credentials)
            if isinstance(presumed, Refused):
                raise ProtocolError(presumed.code, presumed.reason)
            self._begin_exchange(connection, method, request.properties.get(prop.AUTHENTICATION_DATA), presumed.user)
            return
        if authenticator.needs_worker(credentials, now=self._clock.wall):
            connection.hold()
            self._verify_elsewhere(connection, credentials)
        else:
            self.verified(connection, authenticator.verify(credentials, now=self._clock.wall))

    def _check_will(self, request: Connect) -> None:
        will = request.will
        if will is None:
            return
        limits = self._limits
        check_topic_name(will.topic, limits.topic_levels, limits.topic_bytes)
        if will.utf8_payload:
            try:
                will.payload.decode()
            except UnicodeDecodeError:
                raise ProtocolError(Reason.PAYLOAD_FORMAT_INVALID, "will payload is not the text it claims") from None

    def _with_client_id(self, request: Connect) -> Connect:
        if request.version == MQTT_3_1_1 and not request.clean_start:
            raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "empty client identifier without clean session")
        assigned = b"auto-%032x" % self._rng.getrandbits(128)
        found = {**request.properties, prop.ASSIGNED_CLIENT_ID: assigned}
        return Connect(
            request.version,
            assigned,
            request.clean_start,
            request.keep_alive_s,
            request.username,
            request.password,
            request.will,
            found,
            is_bridge=request.is_bridge,
        )

    # -- AUTH --

    def _begin_exchange(self, connection: Connection, method: bytes, data: bytes | None, user: str | None) -> None:
        exchange = self._access.authenticator.begin_exchange(method.decode(), expected_user=user)
        if exchange is None:
            raise ProtocolError(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not offered")
        connection.exchange = exchange
        connection.method = method
        connection.may_be_led = False  # nobody else can prove who it is
        if data is None:
            self._send_auth(connection, Reason.CONTINUE_AUTHENTICATION, b"")
        else:
            self._step(connection, data)

    def auth(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        if connection.version != MQTT_5:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH is not part of 3.1.1")
        code, found = packets.decode_ending(data, body, stop, "AUTH", self._limits.user_properties)
        method = found.get(prop.AUTHENTICATION_METHOD)
        if not connection.method or method != connection.method:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH with another method than CONNECT")
        step = found.get(prop.AUTHENTICATION_DATA, b"")
        if code == Reason.REAUTHENTICATE and connection.state == ConnectionState.CONNECTED:
            session = connection.session
            assert session is not None
            self._begin_exchange(connection, method, step or None, session.user)
        elif code == Reason.CONTINUE_AUTHENTICATION and connection.exchange is not None:
            self._step(connection, step)
        else:
            raise ProtocolError(Reason.PROTOCOL_ERROR, f"AUTH with code 0x{code:02x} is not expected here")

    def _step(self, connection: Connection, data: bytes) -> None:
        assert connection.exchange is not None
        outcome = connection.exchange.step(data)
        if isinstance(outcome, Challenge):
            self._send_auth(connection, Reason.CONTINUE_AUTHENTICATION, outcome.data)
            return
        connection.exchange = None
        if connection.state == ConnectionState.CONNECTED:
            if isinstance(outcome, Refused):
                raise ProtocolError(outcome.code, outcome.reason)
            self._send_auth(connection, Reason.SUCCESS, outcome.data)
        else:
            self.verified(connection, outcome)

    def _send_auth(self, connection: Connection, code: int, data: bytes) -> None:
        packet = encode_auth(code, connection.method, data)
        if not connection.takes(packet):
            raise ProtocolError(Reason.PACKET_TOO_LARGE, "AUTH is above the client's Maximum Packet Size")
        connection.send(packet)

    # -- the verdict --

    def verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        """The client is known, or refused."""
        self._verified(connection, verdict, None)

    def _verified(self, connection: Connection, verdict: Accepted | Refused, checked: Checked | None) -> None:
        if connection.state == ConnectionState.CLOSED:
            return
        try:
            if isinstance(verdict, Refused):
                raise ProtocolError(verdict.code, verdict.reason)
            self._admit(connection, verdict, checked)
        except ProtocolError as error:
            connection.fail(error.code, error.reason)

    def _check(self, connection: Connection, request: Connect, accepted: Accepted) -> Checked:
        client_id, access = request.client_id.decode(), self._access
        is_named_by_us = prop.ASSIGNED_CLIENT_ID in request.properties or connection.peer.is_ours
        if not is_named_by_us and not access.rules.may_be_called(accepted.user, client_id):
            raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "client_ids in [authorization] does not allow it")
        granted = connection.granted
        permissions = access.permissions(accepted.user, client_id, granted)
        will = request.will
        if will is not None and (
            is_control(will.topic) or not may_publish(permissions, request.client_id, will.topic, will.payload)
        ):
            raise ProtocolError(Reason.NOT_AUTHORIZED, f"may not publish its own will on {will.topic.decode()!r}")
        answer = self._connack(request, accepted, present=True)  # or there is no use in going on
        return Checked(permissions, answer, access.authenticator, access.rules, granted)

    def _holds(self, checked: Checked, connection: Connection) -> bool:
        """Has nothing been read again since that decides about it?"""
        access = self._access
        is_same = checked.authenticator is access.authenticator and checked.rules is access.rules
        return is_same and checked.granted is connection.granted

    def _admit(self, connection: Connection, accepted: Accepted, checked: Checked | None) -> None:
        """`checked`: how it stood when the client began to wait for its session."""
        request = connection.connect
        assert request is not None
        connection.accepted = accepted
        # It may have been checked, or have waited for its session, when passwords were read again.
        self._renewal.check_welcome(connection)
        if checked is None or not self._holds(checked, connection):
            checked = self._check(connection, request, accepted)
        known = self._sessions.get(request.client_id)
        replaces = known is not None and known.connection is not None
        if self._lifecycle.clients_connected >= self._limits.connections and not replaces:
            raise ProtocolError(Reason.QUOTA_EXCEEDED, "too many connections")
        if known is not None and known.user not in (None, accepted.user):
            raise ProtocolError(Reason.NOT_AUTHORIZED, "this client identifier belongs to another user")
        if not self._holdings.wills.has_room(will_size(request.will), will_size(known.will if known else None)):
            raise ProtocolError(Reason.QUOTA_EXCEEDED, "no room for one more will; see limits.will_bytes")
        # A foreign broker is attached to one node and stays there, with its clients: no other node need be asked.
        keeper = None if connection.peer.is_ours else self.keeper
        if known is None and keeper is not None and keeper.belongs_to_another(request.client_id, accepted.user):
            raise ProtocolError(Reason.NOT_AUTHORIZED, "this client identifier belongs to another user")
        expires_at = accepted.expires_at
        if expires_at is not None:
            self._watch_proof(connection, expires_at)
        is_early = connection.is_second and known is None  # another node has its session
        if keeper is not None and (is_early or not keeper.is_at_home(request.client_id, clean=request.clean_start)):
            connection.hold()
            greet = partial(self._greet, connection, checked.answer)
            keeper.bring(connection, accepted.user, greet, partial(self._verified, connection, accepted, checked))
            return
        session, present, wait = self._lifecycle.open_session(connection, request, accepted.user, checked.permissions)
        answer = checked.answer if present else self._connack(request, accepted, present=False)
        if keeper is not None and keeper.opened(session):
            # At whichever node the client comes next, its session must be found.
            connection.hold()
            keeper.when_heard(lambda: self._let_in(connection, session, answer, present=present))
        elif wait:
            # A session that outlives its connection must be on disk, and the one it replaces gone, before the client
            # hears of it.
            connection.hold()
            self._let_in(connection, session, answer, present=present)
        else:
            self._welcome(connection, session, answer, present=present)

    def _let_in(self, connection: Connection, session: Session, answer: bytes, *, present: bool) -> None:
        welcome = partial(self._welcome, connection, session, answer, present=present)
        self._commitments.answer_by(connection, welcome)

    def _watch_proof(self, connection: Connection, expires_at: float) -> None:
        """End the connection when its token does.  Looked at often, for the clock on the wall may be set."""
        left_s = expires_at - self._clock.wall
        if connection.state == ConnectionState.CLOSED:
            return
        if left_s <= 0:
            connection.fail(Reason.NOT_AUTHORIZED, "its token, or the answer of the access hook, has expired")
            return
        look_again = self._clock.now + min(left_s, WATCH_S)
        connection.proof_deadline = self._deadlines.replace(
            connection.proof_deadline, look_again, lambda: self._watch_proof(connection, expires_at)
        )

    def _greet(self, connection: Connection, answer: bytes) -> None:
        request = connection.connect
        if request is not None and not request.clean_start and not connection.is_greeted:
            connection.greet(answer)

    def _welcome(self, connection: Connection, session: Session, answer: bytes, *, present: bool) -> None:
        if connection.state == ConnectionState.CLOSED or session.connection is not connection:
            return
        request = connection.connect
        assert request is not None
        is_greeted = connection.is_greeted
        if is_greeted and not present:
            connection.fail(Reason.SERVER_UNAVAILABLE, "its session has ended on its way here")
            return
        self._lifecycle.attach(connection, session, request)
        if not is_greeted:
            connection.send(answer)
        if session.beginning is not None:
            session.beginning.welcomed(connection, self._clock.now)
        self._reports.report("client connected", connection, user=session.user, session_present=present)
        if connection.unsaid:
            session.outbox.send(connection.unsaid)
            connection.unsaid = b""
        is_heard = self.keeper is None or self.keeper.welcomed(session)
        self._delivery.resend(session)
        if is_heard:
            connection.proceed()

    def _connack(self, request: Connect, accepted: Accepted, *, present: bool) -> bytes:
        """The CONNACK that says yes, within the client's Maximum Packet Size [MQTT-3.1.2-24]."""
        if request.version != MQTT_5:
            # In 3.1 the place of Session Present is reserved.
            return encode_connack(request.version, present and not request.is_3_1, Reason.SUCCESS)
        values = self._connack_properties(request, accepted)
        limit = request.properties.get(prop.MAXIMUM_PACKET_SIZE, 0)
        answer = encode_connack(MQTT_5, present, Reason.SUCCESS, values)
        if limit and len(answer) > limit:
            for identifier in _DISPENSABLE:
                values.pop(identifier, None)
            answer = encode_connack(MQTT_5, present, Reason.SUCCESS, values)
            if len(answer) > limit:
                raise ProtocolError(Reason.PACKET_TOO_LARGE, "CONNACK is above the client's Maximum Packet Size")
        return answer

    def _connack_properties(self, request: Connect, accepted: Accepted) -> Properties:
        limits = self._limits
        values: Properties = {
            prop.MAXIMUM_PACKET_SIZE: limits.packet_bytes,
            prop.TOPIC_ALIAS_MAXIMUM: limits.topic_aliases,
        }
        if limits.receive_maximum < RECEIVE_MAXIMUM_IF_UNSAID:
            values[prop.RECEIVE_MAXIMUM] = limits.receive_maximum
        expiry_s = self._lifecycle.expiry(request)
        if request.properties.get(prop.SESSION_EXPIRY, 0) != expiry_s:
            values[prop.SESSION_EXPIRY] = expiry_s
        if prop.ASSIGNED_CLIENT_ID in request.properties:
            values[prop.ASSIGNED_CLIENT_ID] = request.client_id
        if limits.keep_alive_s and not 0 < request.keep_alive_s <= limits.keep_alive_s:
            values[prop.SERVER_KEEP_ALIVE] = limits.keep_alive_s
        if prop.AUTHENTICATION_METHOD in request.properties:
            values[prop.AUTHENTICATION_METHOD] = request.properties[prop.AUTHENTICATION_METHOD]
            values[prop.AUTHENTICATION_DATA] = accepted.data
        return values

    def turn_away(self, connection: Connection, server: str, why: str) -> None:
        """Another node is to serve this client.  A gateway is told which, where the protocol has a word for it; to any
        other client a CONNACK with a Server Reference may be the end."""
        if not connection.gateway or connection.version != MQTT_5 or not server:
            connection.fail(Reason.SERVER_UNAVAILABLE, why)
            return
        answer = encode_connack(MQTT_5, False, Reason.SERVER_MOVED, {prop.SERVER_REFERENCE: server.encode()})
        if not connection.takes(answer):
            connection.fail(Reason.SERVER_UNAVAILABLE, why)
            return
        self._reports.report("client sent elsewhere", connection, server=server, reason=why)
        self._counters.refused("server-moved")
        self._lifecycle.end(connection, answer, graceful=False)


def refusal(connection: Connection, code: int) -> bytes:
    """The CONNACK that says no; nothing to a peer that never spoke MQTT, or did so brokenly in 3.1.1.

    Nor for what passes: some client libraries never try again after a CONNACK that refuses them, but all of them
    do after a connection that was closed without one.  A gateway is told: it asks the next node.
    """
    is_passing = code in (Reason.SERVER_UNAVAILABLE, Reason.SERVER_BUSY)
    if connection.is_greeted or (is_passing and not connection.gateway):
        return b""
    if connection.version == MQTT_5:
        # The reason is for our log: a stranger learns no more than the code.
        answer = encode_connack(MQTT_5, False, code)
        return answer if connection.takes(answer) else b""
    if connection.version == MQTT_3_1_1 and (code in CONNACK_3_1_1 or code == Reason.QUOTA_EXCEEDED):
        return encode_connack(MQTT_3_1_1, False, code)
    return b""
