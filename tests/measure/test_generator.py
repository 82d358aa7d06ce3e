"""The generator counts right, and notices a broker that does not deliver what it should."""

from __future__ import annotations

import os
import socket
import threading
from itertools import count

import pytest

from sterna.measure.errors import MeasurementError
from sterna.measure.load.connections import LoadClients
from sterna.measure.load.generator import GeneratorJob, measure_load
from sterna.measure.load.paced import PacedLoad
from sterna.measure.load.saturation import SaturatedLoad
from sterna.measure.load.shapes import Paced, Saturation, fan_out

from .sham_broker import Forward, faithfully, sham_broker

SMALL = Saturation(fan_out(2, 2, 3), block=16, window=64)


def job(seconds: float) -> GeneratorJob:
    return GeneratorJob(load=SMALL, near=0, pids=(os.getpid(),), warm_up_s=0.05, measure_s=seconds)


def saturate(forward: Forward, seconds: float) -> tuple[SaturatedLoad, int]:
    with sham_broker(forward) as port:
        clients = LoadClients(port)
        try:
            load = SaturatedLoad(clients, SMALL)
            measured = measure_load(load, job(seconds))
            return load, measured.delivered
        finally:
            clients.close()


def test_a_faithful_broker_delivers_everything_to_everyone() -> None:
    load, delivered = saturate(faithfully, 0.2)
    assert load.published > 0
    assert load.delivered == load.published * 3
    assert load.owed == 0
    assert 0 < delivered <= load.delivered


def test_a_lost_message_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.measure.load.generator.DRAIN_S_MAX", 0.2)
    calls = count()

    def lose_the_very_first(packets: bytes, size: int) -> bytes:
        return packets if next(calls) else packets[size:]

    load, _ = saturate(lose_the_very_first, 0.1)
    assert load.owed == 3


def test_a_message_exchanged_for_another_is_noticed_though_the_count_is_right() -> None:
    def swap(packets: bytes, size: int) -> bytes:
        return packets[size : 2 * size] + packets[:size] + packets[2 * size :]

    with pytest.raises(MeasurementError, match="came after"):
        saturate(swap, 2.0)


def test_a_stream_that_loses_its_framing_is_noticed() -> None:
    with pytest.raises(MeasurementError, match="line up"):
        saturate(lambda packets, size: packets[1:], 2.0)


def test_a_refused_connection_is_told_with_the_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        refusing = threading.Thread(target=refuse, args=(listener,))
        refusing.start()
        clients = LoadClients(listener.getsockname()[1])
        with pytest.raises(MeasurementError, match="CONNECT was answered with 20020005"):
            clients.connect("nobody")
        clients.close()
        refusing.join(10)


def refuse(listener: socket.socket) -> None:
    client, _ = listener.accept()
    with client:
        client.recv(1024)
        client.sendall(b"\x20\x02\x00\x05")


def test_a_paced_load_keeps_its_rate_and_times_every_message() -> None:
    for _ in range(20):  # a busy machine may hold one of them up
        with sham_broker() as port:
            clients = LoadClients(port)
            try:
                load = PacedLoad(clients, Paced(fan_out(1, 2, 2), rate=500))
                measured = measure_load(load, job(0.4))
            finally:
                clients.close()
        if 475 <= measured.published / measured.seconds <= 525:
            break
    assert 475 <= measured.published / measured.seconds <= 525
    assert load.delivered == load.published * 2
    assert measured.lost == 0
    assert measured.latency_samples == measured.delivered
    assert measured.latency_p50_us is not None
    assert measured.latency_p99_us is not None
    assert 0 < measured.latency_p50_us <= measured.latency_p99_us
    assert 0 <= measured.generator_busy <= 1
