"""paho and aiomqtt as a process: subscribes with a session that stays, and prints each payload on a line.

`python subscriber.py paho|aiomqtt VERSION CLIENT_ID TOPIC HOST:PORT...`; the rest is as the library has it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import aiomqtt
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

#: aiomqtt leaves it to the program how long it waits before it connects again.
AGAIN_S = 1.0

_new_properties: Any = Properties


def lasting() -> Properties:
    made: Properties = _new_properties(PacketTypes.CONNECT)
    made.SessionExpiryInterval = 300
    return made


def show(payload: Any) -> None:
    print(bytes(payload).decode(), flush=True)


def paho(version: int, client_id: str, topic: str, address: tuple[str, int]) -> None:
    is_5 = version == 5
    client = Client(
        CallbackAPIVersion.VERSION2,
        client_id,
        clean_session=None if is_5 else False,
        protocol=MQTTProtocolVersion(version),
    )
    client.on_connect = lambda connected, *_: connected.subscribe(topic, 1)
    client.on_message = lambda _client, _data, message: show(message.payload)
    if is_5:
        client.connect(*address, clean_start=False, properties=lasting())
    else:
        client.connect(*address)
    client.loop_forever(retry_first_connection=True)


async def with_aiomqtt(version: int, client_id: str, topic: str, addresses: list[tuple[str, int]]) -> None:
    """The loop of its documentation: connect, and after an error again, here to the next address."""
    session: dict[str, Any] = (
        {"clean_start": False, "properties": lasting()} if version == 5 else {"clean_session": False}
    )
    for host, port in itertools.cycle(addresses):
        protocol = aiomqtt.ProtocolVersion(version)
        try:
            async with aiomqtt.Client(host, port, identifier=client_id, protocol=protocol, **session) as client:
                await client.subscribe(topic, qos=1)
                async for message in client.messages:
                    show(message.payload)
        except aiomqtt.MqttError as error:
            print(error, file=sys.stderr)
            await asyncio.sleep(AGAIN_S)


def main() -> None:
    library, version, client_id, topic, *given = sys.argv[1:]
    addresses = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in given)]
    if library == "paho":
        paho(int(version), client_id, topic, addresses[0])
    else:
        asyncio.run(with_aiomqtt(int(version), client_id, topic, addresses))


if __name__ == "__main__":
    main()
