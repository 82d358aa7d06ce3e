"""Connects one client to some node: dials, sends CONNECT, follows redirections, and tries again.

The client is told of two things only: a node has taken the session up, and there is none for the moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sterna.gateway.connecting import PASSING, Wish
from sterna.gateway.context import GatewayContext
from sterna.gateway.ending import SessionEndings
from sterna.gateway.servers import reference
from sterna.gateway.upstream import Upstream, UpstreamPhase
from sterna.mqtt import gateway_packets, packets
from sterna.mqtt import properties as prop
from sterna.mqtt.framing import packet_end
from sterna.mqtt.gateway_packets import Drained
from sterna.mqtt.packets import MQTT_5
from sterna.mqtt.reasons import CONNACK_3_1_1_UNAVAILABLE, Reason
from sterna.mqtt.server_packets import Connack, decode_connack
from sterna.vocabulary.errors import ProtocolError

if TYPE_CHECKING:
    from sterna.gateway.client import GatewayClient

#: Redirections in a row that are followed without a pause.
HOPS_MAX = 8
#: A connection that lasted so long has proved itself.
PROVEN_S = 5.0
#: Connections in a row that ended early, with packets waiting and none answered: one of these packets is what the nodes
#: cannot bear.
FRUITLESS_MAX = 4
#: Times an old session is cleaned away before a clean one is asked for in so many words.
CLEANINGS_MAX = 2


class Tether:
    def __init__(self, context: GatewayContext, endings: SessionEndings, client: GatewayClient, wish: Wish) -> None:
        self.address = client.address
        self._context = context
        self._endings = endings
        self._client = client
        self._wish = wish
        session_s = context.patience.session_s
        #: Nodes are to keep the session for longer than the client wants.
        self.raised = bool(session_s) and wish.is_transient and not wish.exchanges
        self._expiry_s = wish.expiry_s if wish.exchanges else max(wish.expiry_s, session_s)
        #: The node whose connection is in use or being made; it stays the first to ask when that is lost.
        self.server: str | None = None
        self.upstream: Upstream | None = None
        #: To the node that the session is to come to, and its CONNACK: the session is there.
        self.prepared: Upstream | None = None
        self._welcome: Connack | None = None
        #: The node in use has sent all that it had for the client.
        self._has_stopped = False
        #: The node has sent the client away without saying where to.
        self.unwelcome = False
        self._admitted = False
        self._stopped = False
        self._attempt = 0
        self._hops = 0
        self._fruitless = 0
        self._cleanings = 0
        self._stay_until = 0.0
        self._timer = context.later(0.0, self._begin)

    def _begin(self) -> None:
        ending = self._endings.get(self._wish.client_id)
        if ending is not None:
            ending.then(self._dial)
        else:
            self._dial()

    def stop(self) -> Upstream | None:
        """No more of this: the connection in use is the caller's to end."""
        self._stopped = True
        self._timer.cancel()
        self.cancel()
        upstream, self.upstream = self.upstream, None
        return upstream

    # -- dialling --

    def _dial(self) -> None:
        if self._stopped or self.upstream is not None:
            return
        context = self._context
        attempt = 0 if context.now < self._stay_until else self._attempt
        self.upstream = Upstream(context, self, context.servers.choose(self.server, attempt, context.now))

    def _try_again(self) -> None:
        self._timer.cancel()
        self._timer = self._context.later(self._context.servers.pause(self.server, self._attempt), self._dial)

    def opened(self, upstream: Upstream) -> None:
        if upstream is self.prepared and (self._is_clean() or not upstream.hello):
            upstream.wait()  # it would not come with its session, or the node would not wait for that
        else:
            self._greet(upstream)

    def _is_clean(self) -> bool:
        """In 3.1.1 a session that begins clean cannot last, so it does not begin so."""
        return self._wish.clean and not (self._admitted if self._wish.version == MQTT_5 else self.raised)

    def _greet(self, upstream: Upstream) -> None:
        wish, window = self._wish, self._context.patience.window

        def greet() -> None:
            if not self._stopped and upstream in (self.upstream, self.prepared):
                upstream.greet(wish.connect(clean=self._is_clean(), expiry_s=self._expiry_s, window=window))

        self._client.before_greeting(greet)

    # -- the handshake --

    def said(self, upstream: Upstream, data: bytes) -> None:
        if upstream is self.prepared and upstream.phase == UpstreamPhase.LIVE:
            upstream.incoming.add(data)  # what the node in use has sent goes first
            return
        if upstream.phase == UpstreamPhase.LIVE:
            self._client.from_node(upstream, data)
            return
        try:
            if upstream.phase != UpstreamPhase.GREETING:
                raise ProtocolError(Reason.PROTOCOL_ERROR, "a node that spoke first")
            body, stop = packet_end(data, 0, self._context.limits.packet_bytes)
            if not body:
                upstream.incoming.keep(data, stop)
                return
            kind = data[0] >> 4
            if kind == packets.AUTH and not self._admitted:
                self._client.to_client(data[:stop])
            elif kind == 2:
                self._answered(upstream, data[:stop], decode_connack(data, body, stop, self._wish.version))
            else:
                raise ProtocolError(Reason.PROTOCOL_ERROR, f"packet type {kind} instead of CONNACK")
        except ProtocolError as error:
            upstream.abort()
            self.broken(upstream, error.reason)
            return
        if stop < len(data) and upstream.phase <= UpstreamPhase.LIVE:
            self.said(upstream, data[stop:])

    def _answered(self, upstream: Upstream, packet: bytes, welcome: Connack) -> None:
        if upstream is self.prepared:
            self._answered_there(upstream, welcome)
            return
        if not welcome.code:
            self._welcomed(upstream, packet, welcome)
            return
        code = welcome.code if self._wish.version == MQTT_5 else _REASONS.get(welcome.code, Reason.SERVER_UNAVAILABLE)
        target = welcome.properties.get(prop.SERVER_REFERENCE)
        if code in (Reason.USE_ANOTHER_SERVER, Reason.SERVER_MOVED) and target is not None:
            server = reference(target.decode())
            if self.may_follow(server):
                self.redirect(server)
                return
        everybody_asked = not self._admitted and self._attempt + 1 >= len(self._context.servers.order(self.server))
        if code not in PASSING or everybody_asked:
            upstream.close()
            self._client.refused(packet, code)
            return
        upstream.abort()
        self.broken(upstream, f"refused with 0x{code:02x}")

    def _welcomed(self, upstream: Upstream, packet: bytes, welcome: Connack) -> None:
        self._context.servers.reached(upstream.server)
        self.server = upstream.server
        self._attempt = 0
        begins_clean = self._wish.clean and not self._admitted and self.raised
        if begins_clean and welcome.session_present:
            # The client wanted none of what it has left behind.
            self._cleanings += 1
            self.upstream = None
            if self._cleanings > CLEANINGS_MAX:
                self.raised = False
            self._endings.end(self._wish, upstream.server, upstream, self.address).then(self._dial)
            return
        upstream.live()
        first = not self._admitted
        self._admitted = True
        if first:
            self._client.admitted(upstream, welcome)
        else:
            self._client.attached(upstream, welcome)

    # -- when it breaks --

    def broken(self, upstream: Upstream, reason: str) -> None:
        if upstream is self.prepared:
            self.prepared = self._welcome = None
            return
        if upstream is not self.upstream:
            return
        self.upstream = None
        if self._welcome is not None:
            self.switch()
            return
        self.cancel()
        context = self._context
        if upstream.live_since:
            self._lost_live(upstream, reason)
            return
        if upstream.greeted and upstream.hello and not upstream.spoken and "time" not in reason:
            context.servers.is_plain(upstream.server, context.now)
            self._dial()
            return
        context.counters.failures += 1
        context.servers.failed(upstream.server, context.now)
        self._attempt += 1
        self._try_again()

    def _lost_live(self, upstream: Upstream, reason: str) -> None:
        context = self._context
        context.counters.losses += 1
        if context.now - upstream.live_since < PROVEN_S and self._client.is_stuck:
            self._fruitless += 1
        else:
            self._fruitless = 0
        context.report("node lost", self._wish, node=upstream.server, reason=reason)
        if self._fruitless >= FRUITLESS_MAX:
            self._client.dismiss(Reason.PROTOCOL_ERROR, "nodes hang up on what this client sends")
            return
        if self._wish.exchanges:
            self._client.dismiss(Reason.SERVER_BUSY, "nobody else can prove who this client is")
            return
        self._client.detached()
        self._attempt = int(self.unwelcome)  # 0 would be the same node
        self._stay_until = 0.0 if self.unwelcome else context.now + context.patience.stay_s
        self.unwelcome = False
        self._try_again()

    def crowded(self, upstream: Upstream, full: bool) -> None:
        if upstream is self.upstream:
            self._client.node_congested(full)

    # -- moving --

    def may_follow(self, server: str) -> bool:
        """The client's password would go there."""
        context = self._context
        if context.servers.may_follow(server):
            return True
        context.counters.references_refused += 1
        node = self.upstream.server if self.upstream is not None else self.server
        reason = "neither a host of nodes in [upstream] nor among its references"
        context.report(
            "a node names a server that clients are not taken to", self._wish, node=node, to=server, reason=reason
        )
        return False

    def prepare(self, server: str) -> None:
        """Connect the client to the node that its session is to go to; it is served here until it has come there."""
        self.cancel()
        if not self._wish.exchanges:  # nobody else can prove who this client is
            self.prepared = Upstream(self._context, self, server, is_second=True)

    def cancel(self) -> None:
        prepared, self.prepared, self._welcome = self.prepared, None, None
        if prepared is not None:
            prepared.abort()

    def stays(self) -> None:
        """The session does not go there after all."""
        self.cancel()
        self._has_stopped = False
        self._client.node_goes_on()

    def stopped(self) -> None:
        """The node in use has nothing more for the client."""
        self._has_stopped = True
        self._client.node_stopped()
        if self._welcome is not None:
            self.switch()

    def _answered_there(self, upstream: Upstream, welcome: Connack) -> None:
        """By the node that the session is to go to.  If it does not take the client, nothing has changed for it."""
        if welcome.code or not welcome.session_present:
            self.cancel()
            return
        self._context.servers.reached(upstream.server)
        upstream.live()
        self._welcome = welcome
        if self._has_stopped:
            self.switch()
        elif upstream.transport is not None:
            upstream.transport.pause_reading()

    def switch(self) -> None:
        """To the node that has the session now, if it is connected there."""
        ready, welcome = self.prepared, self._welcome
        if ready is None or welcome is None:
            return
        old, self.upstream, self.prepared, self._welcome = self.upstream, ready, None, None
        if old is not None:
            self._leave(old)
        self._client.detached()
        self._moves_to(ready.server, old)
        self._client.attached(ready, welcome)
        self._client.hear_again(ready)

    def _leave(self, old: Upstream) -> None:
        if self._context.now - old.live_since > PROVEN_S and old.live_since:
            self._hops = 0
        if old.hello and old.live_since:
            old.write(gateway_packets.encode(Drained()))
        old.close()

    def _moves_to(self, server: str, old: Upstream | None) -> None:
        context = self._context
        context.counters.redirections += 1
        context.report("client redirected", self._wish, node=old.server if old is not None else None, to=server)
        self.server = server
        self._has_stopped = False
        self._attempt = 0
        self._hops += 1

    def redirect(self, server: str) -> None:
        """The session is there now, or this node wants to be left alone."""
        if self._wish.exchanges:
            self._client.dismiss(Reason.SERVER_BUSY, "nobody else can prove who this client is")
            return
        if self._welcome is not None and self.prepared is not None and self.prepared.server == server:
            self.switch()
            return
        old, self.upstream = self.upstream, None
        if old is not None:
            self._leave(old)
        self._client.detached()
        self._moves_to(server, old)
        if self.prepared is not None and self.prepared.server == server and self._welcome is None:
            self.upstream, self.prepared = self.prepared, None
            if self.upstream.phase == UpstreamPhase.WAITING:
                self._greet(self.upstream)
            return
        self.cancel()
        if self._hops > HOPS_MAX:
            self._hops = 0
            self._attempt = 1
            self._timer.cancel()
            self._timer = self._context.later(self._context.patience.retry_max_s, self._dial)
        else:
            self._dial()


#: The meaning of the return codes of 3.1.1, as far as a gateway has to tell them apart.
_REASONS = {
    1: Reason.UNSUPPORTED_PROTOCOL_VERSION,
    2: Reason.CLIENT_IDENTIFIER_NOT_VALID,
    CONNACK_3_1_1_UNAVAILABLE: Reason.SERVER_UNAVAILABLE,
    4: Reason.BAD_USER_NAME_OR_PASSWORD,
    5: Reason.NOT_AUTHORIZED,
}
