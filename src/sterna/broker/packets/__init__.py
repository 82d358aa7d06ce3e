"""The packets that clients send: framing and dispatch, CONNECT, PUBLISH, acknowledgements, SUBSCRIBE."""
