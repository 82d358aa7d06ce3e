"""From CONNECT to CONNACK: who is it, may it come in, which session is its own.

Authentication may take more than one step (a password hash worked out in a thread, an exchange of AUTH packets); the
connection holds its further packets back until the answer is known.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sterna.broker.connection import Connection, State
from sterna.broker.identity import Accepted, Challenge, Credentials, Refused
from sterna.broker.lifecycle import WATCH_S
from sterna.broker.session import Session
from sterna.mqtt import packets
from sterna.mqtt import properties as prop
from sterna.mqtt.packets import MQTT_3_1_1, MQTT_5, Connect, encode_auth, encode_connack
from sterna.mqtt.properties import Properties
from sterna.mqtt.reasons import CONNACK_3_1_1, Reason
from sterna.mqtt.topics import is_reserved, is_topic_name
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.broker.broker import Broker


class Handshake:
    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def learn_version(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        """The level stands at a fixed place, so that even a CONNECT broken further on is refused in its own version."""
        if connection.version:
            return
        if data[body : body + 6] == b"\x00\x04MQTT" and body + 6 < stop:
            connection.version = MQTT_5 if data[body + 6] >= MQTT_5 else MQTT_3_1_1
        elif data[body : body + 8] == b"\x00\x06MQIsdp":
            connection.version = MQTT_3_1_1

    def connect(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        request = packets.decode_connect(data, body, stop, self._broker.limits.user_properties)
        self._check_will(request)
        if len(request.client_id) > self._broker.limits.client_id_bytes:
            raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "client identifier is too long")
        if not request.client_id:
            request = self._with_client_id(request)
        connection.connect = request
        connection.enter(State.AUTHENTICATING)
        credentials = Credentials(
            request.client_id.decode(),
            request.username,
            request.password,
            connection.peer.certificate_name,
            connection.peer.anonymous_allowed,
        )
        broker = self._broker
        method = request.properties.get(prop.AUTHENTICATION_METHOD)
        if method is not None:
            presumed = broker.authenticator.presumed(credentials)
            if isinstance(presumed, Refused):
                raise ProtocolError(presumed.code, presumed.reason)
            self._begin_exchange(connection, method, request.properties.get(prop.AUTHENTICATION_DATA), presumed.user)
            return
        if broker.authenticator.needs_worker(credentials, now=broker.wall):
            connection.hold()
            broker.verify_elsewhere(connection, credentials)
        else:
            self.verified(connection, broker.authenticator.verify(credentials, now=broker.wall))

    def _check_will(self, request: Connect) -> None:
        will = request.will
        if will is None:
            return
        limits = self._broker.limits
        if not is_topic_name(will.topic, limits.topic_levels, limits.topic_bytes):
            raise ProtocolError(Reason.TOPIC_NAME_INVALID, "will topic is empty, too long or contains a wildcard")
        if will.utf8_payload:
            try:
                will.payload.decode()
            except UnicodeDecodeError:
                raise ProtocolError(Reason.PAYLOAD_FORMAT_INVALID, "will payload is not the text it claims") from None

    def _with_client_id(self, request: Connect) -> Connect:
        if request.version == MQTT_3_1_1 and not request.clean_start:
            raise ProtocolError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "empty client identifier without clean session")
        assigned = b"auto-%032x" % self._broker.rng.getrandbits(128)
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
        )

    # -- AUTH --

    def _begin_exchange(self, connection: Connection, method: bytes, data: bytes | None, user: str | None) -> None:
        exchange = self._broker.authenticator.begin_exchange(method.decode(), expected_user=user)
        if exchange is None:
            raise ProtocolError(Reason.BAD_AUTHENTICATION_METHOD, f"authentication method {method!r} is not offered")
        connection.exchange = exchange
        connection.method = method
        if data is None:
            connection.send(encode_auth(Reason.CONTINUE_AUTHENTICATION, method, b""))
        else:
            self._step(connection, data)

    def auth(self, connection: Connection, data: bytes, body: int, stop: int) -> None:
        if connection.version != MQTT_5:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH is not part of 3.1.1")
        code, found = packets.decode_ending(data, body, stop, "AUTH", self._broker.limits.user_properties)
        method = found.get(prop.AUTHENTICATION_METHOD)
        if not connection.method or method != connection.method:
            raise ProtocolError(Reason.PROTOCOL_ERROR, "AUTH with another method than CONNECT")
        step = found.get(prop.AUTHENTICATION_DATA, b"")
        if code == Reason.REAUTHENTICATE and connection.state == State.CONNECTED:
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
            connection.send(encode_auth(Reason.CONTINUE_AUTHENTICATION, connection.method, outcome.data))
            return
        connection.exchange = None
        if connection.state == State.CONNECTED:
            if isinstance(outcome, Refused):
                raise ProtocolError(outcome.code, outcome.reason)
            connection.send(encode_auth(Reason.SUCCESS, connection.method, outcome.data))
        else:
            self.verified(connection, outcome)

    # -- the verdict --

    def verified(self, connection: Connection, verdict: Accepted | Refused) -> None:
        """The client is known, or refused."""
        if connection.state == State.CLOSED:
            return
        try:
            if isinstance(verdict, Refused):
                raise ProtocolError(verdict.code, verdict.reason)
            self._admit(connection, verdict)
        except ProtocolError as error:
            connection.fail(error.code, error.reason)

    def _admit(self, connection: Connection, accepted: Accepted) -> None:
        broker = self._broker
        request = connection.connect
        assert request is not None
        permissions = broker.access.for_identity(accepted.user, request.client_id.decode())
        if request.will is not None and (
            is_reserved(request.will.topic) or not permissions.may_publish(request.will.topic)
        ):
            raise ProtocolError(Reason.NOT_AUTHORIZED, "may not publish its own will")
        known = broker.sessions.get(request.client_id)
        replaces = known is not None and known.connection is not None
        if broker.clients_connected >= broker.limits.connections and not replaces:
            raise ProtocolError(Reason.QUOTA_EXCEEDED, "too many connections")
        if known is not None and known.user not in (None, accepted.user):
            raise ProtocolError(Reason.NOT_AUTHORIZED, "this client identifier belongs to another user")
        expires_at = accepted.expires_at
        if expires_at is not None:
            self._watch_proof(connection, expires_at)
        keeper = broker.keeper
        if keeper is not None and not keeper.is_at_home(request.client_id, clean=request.clean_start):
            connection.hold()
            keeper.bring(connection, accepted.user, lambda: self.verified(connection, accepted))
            return
        session, present, wait = broker.lifecycle.open_session(connection, request, accepted.user, permissions)
        if keeper is not None and keeper.opened(session):
            # Wherever it comes next, its session is to be found.
            connection.hold()
            keeper.when_heard(lambda: self._let_in(connection, session, accepted, present=present))
        elif wait:
            # A session that outlives its connection must be on disk, and the one it replaces gone, before the client
            # hears of it.
            connection.hold()
            self._let_in(connection, session, accepted, present=present)
        else:
            self._welcome(connection, session, accepted, present=present)

    def _let_in(self, connection: Connection, session: Session, accepted: Accepted, *, present: bool) -> None:
        welcome = partial(self._welcome, connection, session, accepted, present=present)
        self._broker.commitments.then(connection, welcome)

    def _watch_proof(self, connection: Connection, expires_at: float) -> None:
        """End the connection when its token does.  Looked at often, so that an ended connection is soon let go."""
        broker = self._broker
        left_s = expires_at - broker.wall
        if connection.state == State.CLOSED:
            return
        if left_s <= 0:
            connection.fail(Reason.NOT_AUTHORIZED, "its token has expired")
            return
        look_again = broker.now + min(left_s, WATCH_S)
        broker.deadlines.at(look_again, lambda: self._watch_proof(connection, expires_at))

    def _welcome(self, connection: Connection, session: Session, accepted: Accepted, *, present: bool) -> None:
        if connection.state == State.CLOSED or session.connection is not connection:
            return
        request = connection.connect
        assert request is not None
        broker = self._broker
        broker.lifecycle.attach(connection, session, request)
        values = self._connack_properties(request, session, accepted) if request.version == MQTT_5 else prop.NONE
        connection.send(encode_connack(request.version, present, Reason.SUCCESS, values))
        broker.report("client connected", connection, user=session.user, session_present=present)
        if connection.unsaid:
            session.outbox.send(connection.unsaid)
            connection.unsaid = b""
        broker.delivery.resend(session)
        connection.proceed()

    def _connack_properties(self, request: Connect, session: Session, accepted: Accepted) -> Properties:
        limits = self._broker.limits
        values: Properties = {
            prop.RECEIVE_MAXIMUM: limits.receive_maximum,
            prop.MAXIMUM_PACKET_SIZE: limits.packet_bytes,
            prop.TOPIC_ALIAS_MAXIMUM: limits.topic_aliases,
        }
        if request.properties.get(prop.SESSION_EXPIRY, 0) != session.expiry_s:
            values[prop.SESSION_EXPIRY] = session.expiry_s
        if prop.ASSIGNED_CLIENT_ID in request.properties:
            values[prop.ASSIGNED_CLIENT_ID] = request.client_id
        if limits.keep_alive_s and not 0 < request.keep_alive_s <= limits.keep_alive_s:
            values[prop.SERVER_KEEP_ALIVE] = limits.keep_alive_s
        if prop.AUTHENTICATION_METHOD in request.properties:
            values[prop.AUTHENTICATION_METHOD] = request.properties[prop.AUTHENTICATION_METHOD]
            values[prop.AUTHENTICATION_DATA] = accepted.data
        return values

    def send_elsewhere(self, connection: Connection, code: int, server: str, why: str) -> None:
        """Another node is to serve this client: CONNACK says which, where the protocol has a word for it."""
        if connection.version != MQTT_5 or not server:
            connection.fail(Reason.SERVER_UNAVAILABLE, why)
            return
        self._broker.report("client sent elsewhere", connection, server=server, reason=why)
        self._broker.counters.refused(Reason(code).name.lower().replace("_", "-"))
        answer = encode_connack(MQTT_5, False, code, {prop.SERVER_REFERENCE: server.encode()})
        self._broker.lifecycle.end(connection, answer, graceful=False)

    def refusal(self, connection: Connection, code: int, reason: str) -> bytes:
        """The CONNACK that says no; nothing to a peer that never spoke MQTT, or did so brokenly in 3.1.1."""
        if connection.version == MQTT_5:
            # The reason is for our log: a stranger learns no more than the code.
            return encode_connack(MQTT_5, False, code)
        if connection.version == MQTT_3_1_1 and (code in CONNACK_3_1_1 or code == Reason.QUOTA_EXCEEDED):
            return encode_connack(MQTT_3_1_1, False, code)
        return b""
