"""Where Debian's Mosquitto 2.0.11 answers otherwise: the beginning of the test's name, and what Mosquitto does.

The tests stay true to the standard and to what we want beyond it; with `STERNA_PEER=mosquitto` these are expected
to fail, and it is an error if one of them passes.
"""

_CLOSED_FOR = "test_a_connected_client_is_closed_for"
_REFUSED_FOR = "test_connect_is_refused_for"
_UNSUBSCRIBING = "test_unsubscribing_from_a_bad_filter_is_not_acknowledged"

BREAKS_THE_STANDARD = {
    "test_the_broker_keeps_to_the_clients_receive_maximum[3]": "sends two messages for one PUBACK [MQTT-3.3.4-9]",
    "test_the_window_is_kept_after_reconnecting": "sends everything again at once [MQTT-3.3.4-9]",
    "test_a_client_beyond_the_brokers_receive_maximum_is_closed": "PUBREC 0x97, not DISCONNECT 0x93 (section 3.3.4)",
    "test_the_largest_packet_the_client_takes_is_sent": "sends one byte too many [MQTT-3.1.2-24]",
    "test_connack_keeps_to_the_clients_packet_size": "sends it whole [MQTT-3.1.2-24]",
    "test_a_client_that_is_too_narrow_for_connack_leaves_no_session": "sends it whole [MQTT-3.1.2-24]",
    "test_an_answer_too_large_for_the_client_is_not_sent": "sends it whole [MQTT-3.1.2-24]",
    "test_disconnect_with_another_code_publishes_the_will[0x80]": "publishes for 0x04 alone (section 3.1.2.5)",
    "test_disconnect_with_another_code_publishes_the_will[0x83]": "publishes for 0x04 alone (section 3.1.2.5)",
    "test_a_delayed_will_does_not_outwait_its_session[0]": "waits although the session ended (section 3.1.3.2.2)",
    "test_a_clean_start_ends_the_session_and_its_waiting_will": "forgets the will (section 3.1.3.2.2)",
    "test_a_message_once_sent_does_not_expire": "drops it [MQTT-4.3.3-7], [MQTT-4.4.0-1]",
    "test_overlapping_subscriptions_give_the_highest_qos[v3.1.1]": "takes the first one's QoS [MQTT-3.3.5-1]",
    "test_retained_messages_are_not_sent_to_a_group": "sends them (section 4.8.2)",
    "test_no_local_on_a_shared_subscription_is_a_protocol_error": "grants it [MQTT-3.8.3-4]",
    f"{_CLOSED_FOR}[SUBACK from a client": "ignores it (section 4.13)",
    f"{_CLOSED_FOR}[UNSUBACK from a client": "ignores it (section 4.13)",
    f"{_CLOSED_FOR}[PINGRESP from a client": "ignores it (section 4.13)",
    f"{_CLOSED_FOR}[PUBACK with wrong flags": "ignores the flags [MQTT-2.1.3-1]",
    f"{_CLOSED_FOR}[PINGREQ with wrong flags": "ignores the flags [MQTT-2.1.3-1]",
    f"{_CLOSED_FOR}[PINGREQ with a body": "ignores the body (section 3.12)",
    f"{_CLOSED_FOR}[DUP with QoS 0": "ignores the flag [MQTT-3.3.1-2]",
    f"{_CLOSED_FOR}[a subscription identifier in PUBLISH": "ignores it [MQTT-3.3.4-6]",
    f"{_CLOSED_FOR}[payload format 2": "passes it on (section 3.3.2.3.2)",
    f"{_CLOSED_FOR}[a wildcard in the response topic": "passes it on [MQTT-3.3.2-14]",
    f"{_CLOSED_FOR}[subscription identifier 0": "0x81, where section 3.8.2.1.2 says Protocol Error",
    f"{_REFUSED_FOR}[authentication data without a method": "accepts it (section 3.1.2.11.10)",
    f"{_REFUSED_FOR}[will payload format 2": "accepts it (section 3.1.3.2.3)",
    f"{_REFUSED_FOR}[a wildcard in the response topic of the will": "accepts it [MQTT-3.3.2-14]",
    f"{_UNSUBSCRIBING}[v3.1.1-$share//x]": "acknowledges it [MQTT-4.8.2-1]",
    f"{_UNSUBSCRIBING}[v5.0-$share//x]": "acknowledges it [MQTT-4.8.2-1]",
    f"{_UNSUBSCRIBING}[v3.1.1-$share/g/]": "acknowledges it [MQTT-4.8.2-2]",
    f"{_UNSUBSCRIBING}[v5.0-$share/g/]": "acknowledges it [MQTT-4.8.2-2]",
    "test_a_bad_shared_filter_is_refused[$share//x]": "grants it [MQTT-4.8.2-1]",
    "test_a_bad_shared_filter_is_refused[$share/g/]": "grants it [MQTT-4.8.2-2]",
}

LEFT_OPEN_BY_THE_STANDARD = {
    "test_a_client_that_never_says_connect_is_let_go": "waits for longer than the test (SHOULD, section 3.1.4)",
    "test_pubrel_is_always_answered[v5.0]": "answers 0x00 where 0x92 says what happened (section 3.7.2.1)",
    "test_pubrec_for_an_unknown_packet_id_is_answered_with_0x92": "answers 0x00 (section 3.6.2.1)",
    "test_the_broker_uses_aliases_when_it_may": "never does",
    "test_overlapping_subscriptions_are_served_once[v5.0]": "sends a copy for each",
    "test_an_unacknowledged_qos_1_message_of_a_dead_member_goes_to_another": "loses it (SHOULD, section 4.8.2)",
    "test_nothing_else_is_written_to_sys": "takes any will, any payload, and a bridge without a name",
    "test_the_states_of_bridges_are_bounded": "has no bound",
    "test_a_subscription_asked_for_in_3_1_can_be_refused": "grants it: 200 levels are its limit, and 128 ours",
    "test_a_publisher_learns_whether_anybody_listens[2]": "says 0x10 in PUBACK, not in PUBREC (section 3.5.2.1)",
}


def reason_mosquitto_fails(test_name: str) -> str | None:
    table = BREAKS_THE_STANDARD | LEFT_OPEN_BY_THE_STANDARD
    return next((reason for beginning, reason in table.items() if test_name.startswith(beginning)), None)
