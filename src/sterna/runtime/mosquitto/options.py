"""The counterparts of the options of a mosquitto.conf: tables, one row per option.

`NUMBERS` are limits that a node has too.  `NEEDLESS` need no counterpart.  `IMPOSSIBLE` have none, with the remedy.
An option in none of them, nor handled in `translation`, is unknown.
"""

from __future__ import annotations

from typing import NamedTuple

LISTENER_OPTIONS = frozenset(
    {
        *("protocol", "certfile", "keyfile", "cafile", "capath", "require_certificate", "use_identity_as_username"),
        *("use_subject_as_username", "max_connections", "max_topic_alias", "mount_point", "bind_interface"),
        *("ciphers", "ciphers_tls1.3", "tls_version", "dhparamfile", "crlfile", "psk_hint", "tls_engine"),
        *("tls_engine_kpass_sha1", "tls_keyform", "http_dir", "socket_domain", "max_qos", "use_username_as_clientid"),
        *("websockets_headers_size", "websockets_log_level", "websockets_origin"),
    }
)
SECURITY_OPTIONS = frozenset({"allow_anonymous", "password_file", "acl_file"})
"""Of one listener where per_listener_settings is true, else of all."""


PLUGIN_OPTIONS = ("auth_opt_", "plugin_opt_")
"""How options begin that plug-ins read."""


class Number(NamedTuple):
    table: str
    key: str
    least: int
    most: int
    unlimited: int | None
    """In place of Mosquitto's 0; None: the node's own default holds."""


NUMBERS = {
    "max_inflight_messages": Number("limits", "inflight", 1, 65535, 65535),
    "max_inflight_bytes": Number("limits", "inflight_bytes", 1, 2**62, None),
    "max_queued_messages": Number("limits", "queued", 1, 2**62, None),
    "max_packet_size": Number("limits", "packet_bytes", 128, 268_435_460, None),
    "max_keepalive": Number("limits", "keep_alive_s", 0, 65535, 0),
    "max_topic_alias": Number("limits", "topic_aliases", 0, 65535, 0),
    "sys_interval": Number("mqtt", "sys_interval_s", 0, 86400, 0),
}

DURATIONS_S = {"h": 3600, "d": 86400, "w": 7 * 86400, "m": 30 * 86400, "y": 365 * 86400}
"""Units of persistent_client_expiration."""
SESSION_EXPIRY_S_MAX = 2**32 - 1

LOG_LEVELS = {
    "all": "debug",
    "debug": "debug",
    "information": "info",
    "notice": "info",
    "warning": "warning",
    "error": "error",
}
SEVERITIES = ("debug", "info", "warning", "error")

NEEDLESS = frozenset(
    {
        *("per_listener_settings", "include_dir", "autosave_interval", "autosave_on_changes", "persistence_file"),
        *("set_tcp_nodelay", "allow_duplicate_messages", "connection_messages", "log_timestamp"),
        *("log_timestamp_format", "check_retain_source", "websockets_headers_size", "websockets_log_level"),
        *("retry_interval", "dhparamfile"),
    }
)
"""A node does so anyway, or reads it from elsewhere in the file."""

TRUTHS = frozenset(
    {
        *("allow_anonymous", "allow_zero_length_clientid", "per_listener_settings", "persistence"),
        *("require_certificate", "retain_available", "use_identity_as_username"),
    }
)
"""They are translated and say `true` or `false`; Mosquitto does not start with anything else."""

_SERVICE = "the service manager that starts the node does this", "set it there, for example User= in a systemd unit"
_RULES = "a node decides by its own rules", "see [authentication] and [authorization] in docs/configuration.md"
_TLS = "a node uses the TLS settings of its OpenSSL", "set them in openssl.cnf"
_NO_PSK = "a node does not speak TLS with pre-shared keys", "give the listener a certificate (certfile, keyfile)"

IMPOSSIBLE = {
    "user": _SERVICE,
    "pid_file": _SERVICE,
    "plugin": _RULES,
    "auth_plugin": _RULES,
    "global_plugin": _RULES,
    "auth_plugin_deny_special_chars": _RULES,
    "use_subject_as_username": ("a node knows users by the common name only", "use use_identity_as_username"),
    "use_username_as_clientid": ("a client keeps its own identifier", 'set client_ids = ["%u"] in [authorization]'),
    "psk_file": _NO_PSK,
    "psk_hint": _NO_PSK,
    "ciphers": _TLS,
    "ciphers_tls1.3": _TLS,
    "tls_version": _TLS,
    "tls_engine": _TLS,
    "tls_engine_kpass_sha1": _TLS,
    "tls_keyform": _TLS,
    "crlfile": ("a node reads no lists of revoked certificates", "give clients short-lived certificates"),
    "capath": ("a node reads authorities from one file", "join the files of the directory and set client_ca"),
    "mount_point": ("a node has one tree of topics", "run a node per tree, or separate clients by access rules"),
    "bind_interface": ("a node listens at addresses", "write the interface's address behind the listener's port"),
    "socket_domain": ("a node listens at addresses", "write 0.0.0.0 or :: behind the listener's port"),
    "http_dir": ("a node serves no files", "use a web server"),
    "websockets_origin": ("pages are named with their scheme", "set allowed_origins in the [[listener]]"),
    "max_qos": ("a node takes every QoS", "remove the line"),
    "message_size_limit": ("a node limits packets, not payloads", "set packet_bytes in [limits], or max_packet_size"),
    "max_queued_bytes": ("queues are places in the journal", "set retention_bytes in [journal]"),
    "memory_limit": (
        "a node bounds each thing in memory by itself",
        "see [limits]; let the service manager limit the rest",
    ),
    "queue_qos0_messages": ("QoS 0 does not wait for clients that are away", "publish at QoS 1"),
    "upgrade_outgoing_qos": ("a delivery has the lower QoS of the two", "publish at the QoS that is wanted"),
    "auto_id_prefix": ("a node chooses identifiers itself", "let clients bring their own"),
    "allow_zero_length_clientid": ("a node takes clients without an identifier", "set client_ids in [authorization]"),
    "log_facility": ("a node logs to stderr", "let the service manager pass it on"),
}
