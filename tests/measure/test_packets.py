"""The packets are the standard's, byte for byte."""

from __future__ import annotations

from sterna.measure.load import packets


def test_connect_is_mqtt_3_1_1_with_the_session_asked_for() -> None:
    assert packets.connect("ab", clean=True) == bytes.fromhex("10 0e 0004 4d515454 04 02 0000 0002 6162")
    assert packets.connect("ab", clean=False)[9] == 0x00


def test_subscribe_carries_every_filter_and_a_long_remaining_length() -> None:
    assert packets.subscribe(1, ["a/+"], 1) == bytes.fromhex("82 08 0001 0003 612f2b 01")
    many = packets.subscribe(1, [f"wild/{n:05}/+" for n in range(100)], 0)
    assert len(many) == 3 + (many[1] & 0x7F) + (many[2] << 7)


def test_a_publish_has_the_size_and_payload_place_the_reader_counts_on() -> None:
    for qos in (0, 1, 2):
        packet = packets.publish("bench/topic", packets.payload(7, 300), qos, packet_id=513)
        assert len(packet) == packets.publish_bytes("bench/topic", qos) == packet[1] + 2
        assert packet[0] == 0x30 | qos << 1
        offset = packets.payload_offset("bench/topic", qos)
        assert packet[offset : offset + 4] == bytes.fromhex("0007 012c")
        assert qos == 0 or packet[offset - 2 : offset] == bytes.fromhex("0201")
