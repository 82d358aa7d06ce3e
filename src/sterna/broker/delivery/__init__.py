"""From a message to its subscribers: routes, fan-out, retained messages, the audit of deliveries."""
