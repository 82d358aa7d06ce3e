"""Counters of moves by outcome, as `/migrations` shows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MoveCounters:
    """Since the node started."""

    arrived: int = 0
    departed: int = 0
    rolled_back: int = 0
    """Sessions that stayed here though another node was to have them; among them,"""
    came_back: int = 0
    """because their clients came back here instead of going there, or while they were about to be sent;"""
    did_not_come: int = 0
    """because their clients were sent there and came neither there nor back in time."""
    given_up: int = 0
    new_sessions: int = 0
    """Sessions given to clients whose own nodes could not be reached."""
    fenced: int = 0
    """Sessions here that another node turned out to own."""
    handed_over: int = 0
    """Messages that waited in them and are safe at that node."""
    not_handed_over: int = 0
    """Messages that waited in them and that nobody wanted, or not before they expired."""
    in_flight_dropped: int = 0
    """Messages at QoS 2 of old sessions that their clients may have, so that they are not sent again."""
    left_to_old: int = 0
    """Messages at QoS 2 that new sessions here left to old ones, which may have delivered them: they come when those
    are handed over, and never if their nodes do not return."""
    taken_over: int = 0
    """Messages from other nodes' fenced sessions that were added to new sessions here."""
    unwanted: int = 0
    """Messages from there that the client has not subscribed to again."""
    out_of_turn: int = 0
    """Times a node was read, or a publisher heard here, though that publisher had come from another node that could not
    be read for too long."""
    identifiers_kept: int = 0
    """Times a client kept its identifier though another user came with it at another node."""
    identifiers_given_up: int = 0
    """Clients refused or disconnected because another user had their identifier first, at another node."""
    impossible: int = 0
    """Numbers of owners that no clock can have given: what other nodes said with them was not believed."""
    too_big: int = 0
    """Messages of the protocol that did not fit into a frame of a link."""
    refused: int = 0
    """Messages of the protocol that were out of place: old, repeated or forged."""
