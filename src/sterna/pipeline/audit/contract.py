"""The delivery contract, checked: the fate of every message for each of its subscribers.

`audit(messages, subscriptions, deliveries)` works on any three tables of this form, from nodes' journals or from what
clients wrote down themselves:

    messages       topic, qos, publisher, origin, epoch, sequence, ingress_time: as in the table of messages
    subscriptions  node, client, session                   whose; `session` tells sessions of one client apart
                   at_node         optional: where it was meanwhile, if it began elsewhere
                   filter, qos, no_local                   to what; with $share/group/ where it is shared
                   rules           JSON of what of it may be read, see `Permissions.reading`; null: everything
                   since, stands   when it was asked for, and when it was confirmed (null: never)
                   until           when it ended; null: it stands
                   after           {origin: (epoch, sequence)}: what comes after these must come.  Of origins that are
                                   not in it, and where it is null: what came in from `stands` on
                   reached         the same at its end: what comes after these need not.  Null: what came in by `until`
                   over            null: the session goes on; "ended"; "died" with its node, with its last records
                   turn            optional: how many sessions it has been, each taking over from the one before when
                                   that is back: in the meantime later messages do not overtake those of that
    deliveries     node, client, session, share    to whom; the shared subscription it came by, if it did
                   origin, epoch, sequence, qos            null origin: only the number of `messages` is known
                   at, place       when, and something that grows in the order of receiving; null: no order is promised
                   turn            optional: for which of the sessions that took over from each other
                   resent, retained                        sent again; sent because of a new subscription (left out)
                   dropped         why it will not be delivered; null: it was

A message reaches a session once, however many of its filters match: it counts with the filter of the highest QoS.
The members of a shared subscription are one subscriber.  Nothing here goes through the driver but distinct filters with
wildcards.  The messages of a subscriber are sorted by publisher and topic; all else is sums and joins, so a subscriber
of everything is not one task's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from sterna.mqtt.topics import FilterTree, matches

SKEW_S = 1.0
"""By how much clocks of different machines may differ: within it of a subscription's beginning or end, a message from
elsewhere may come and need not."""

REASONS = (
    "expired",
    "queue-full",
    "retention",
    "packet-too-large",
    "not-authorized",
    "offline",
    "slow-consumer",
    "moving",
    "session-ended",
    "owned-elsewhere",
)
"""Why nodes drop messages; anything else is counted as "other"."""

_WHO = ("node", "client", "session", "share")
_MEMBER = ("node", "client", "session")
_MESSAGE = ("origin", "epoch", "sequence")
_SHARED = "^\\$share/[^/]+/"


def audit(messages: DataFrame, subscriptions: DataFrame, deliveries: DataFrame, *, skew_s: float = SKEW_S) -> DataFrame:
    """A row per subscription and QoS of delivery; see `summary`."""
    return summary(judge(messages, subscriptions, deliveries, skew_s=skew_s), deliveries)


def judge(messages: DataFrame, subscriptions: DataFrame, deliveries: DataFrame, *, skew_s: float = SKEW_S) -> DataFrame:
    """A row per subscriber and message that was, or had to be, delivered.

    `verdict` is delivered, waiting, dropped (`reason` says why), lost, or uncertain: the session died with its node,
    and the record of a delivery may have died too; or a member of a shared subscription left after the message came.
    Lost is what was overtaken by a later message of the same origin and QoS, as nothing is in a queue.
    """
    members = subscriptions.withColumn("rules", f.coalesce("rules", f.lit("")))
    wanted = _wanted(messages, members, skew_s)
    by_message = _brought_together(wanted, deliveries)
    told = _in_order(by_message, deliveries).join(
        f.broadcast(_passed_by_all(subscriptions, deliveries)), ["share", "origin"], "left"
    )
    overtaken = f.col("overtaken") | f.coalesce(_stamp() < f.col("passed"), f.lit(False))
    is_shared = f.col("share") != ""
    gone = f.when(f.col("died"), "uncertain").otherwise("dropped")
    verdict = (
        f.when(f.col("times") > 0, "delivered")
        .when(f.col("dropped").isNotNull(), "dropped")
        .when(is_shared & f.col("left"), "uncertain")
        .when(overtaken, "lost")
        .otherwise(f.when(f.col("open"), "waiting").otherwise(gone))
    )
    reason = f.when(f.col("verdict") == "dropped", f.coalesce("dropped", f.lit("session-ended")))
    return told.withColumn("verdict", verdict).select(
        "node",
        "client",
        "session",
        "filter",
        "qos",
        "topic",
        *_MESSAGE,
        "ingress_time",
        "verdict",
        reason.alias("reason"),
        "times",
        "resent",
        "reordered",
        f.col("at").alias("delivered_at"),
    )


def _stamp() -> Column:
    return f.struct("epoch", "sequence")


# -- what had to come --


def _wanted(messages: DataFrame, subscriptions: DataFrame, skew_s: float) -> DataFrame:
    """A row per message and subscription it matches that stood when it came, or nearly."""
    told = messages.select("topic", f.col("qos").alias("published"), "publisher", *_MESSAGE, "ingress_time")
    pairs = told.join(_matching(told.select("topic").distinct(), subscriptions), "topic").join(
        subscriptions, ["filter", "rules"]
    )
    there = f.col("at_node" if "at_node" in subscriptions.columns else "node")
    pairs = pairs.where(~(f.col("no_local") & (f.col("publisher") == f.col("client")) & (f.col("origin") == there)))
    skew = f.when(f.col("origin") == there, f.lit(0.0)).otherwise(f.lit(skew_s))
    came, since, stands, until = (f.col(name).cast("double") for name in ("ingress_time", "since", "stands", "until"))
    after, reached = f.col("after")[f.col("origin")], f.col("reached")[f.col("origin")]
    begun = f.when(after.isNotNull(), _stamp() > after).otherwise(came >= stands + skew)
    not_over = (
        f.when(f.col("until").isNull(), f.lit(True))
        .when(f.col("reached").isNotNull(), _stamp() <= reached)
        .otherwise(came < until - skew)
    )
    must = f.coalesce(begun & not_over, f.lit(False))
    nearly = (came >= since - skew_s) & f.coalesce(came <= until + skew_s, f.lit(True))
    shared = f.col("filter").startswith("$share/")
    return (
        pairs.withColumn("must", must)
        .where(f.col("must") | nearly)
        .select(
            f.when(shared, "").otherwise(f.col("node")).alias("node"),
            f.when(shared, "").otherwise(f.col("client")).alias("client"),
            f.when(shared, f.lit(0)).otherwise(f.col("session")).alias("session"),
            f.when(shared, f.col("filter")).otherwise("").alias("share"),
            *_MESSAGE,
            "must",
            f.struct("must", "qos", "filter").alias("grade"),
            "published",
            "publisher",
            "topic",
            "ingress_time",
            f.when(f.col("must"), _turn(subscriptions)).alias("turn"),
            (f.col("must") & f.col("over").isNull()).alias("open"),
            (f.col("must") & f.coalesce(f.col("over") == "died", f.lit(False))).alias("died"),
            f.coalesce(came <= until + skew_s, f.lit(False)).alias("left"),
        )
    )


def _turn(table: DataFrame) -> Column:
    return f.col("turn") if "turn" in table.columns else f.lit(0)


def _matching(topics: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """(topic, filter, rules) of those that match: plain filters by a join, others by a tree that every task has."""
    filters = subscriptions.select("filter", "rules").distinct()
    filters = filters.withColumn("bare", f.regexp_replace("filter", _SHARED, ""))
    needs_a_look = f.col("bare").rlike("[+#]") | (f.col("rules") != "")
    plain = topics.join(filters.where(~needs_a_look), f.col("topic") == f.col("bare")).drop("bare")
    wild = [(row.bare.encode(), row.filter, row.rules) for row in filters.where(needs_a_look).collect()]
    if not wild:
        return plain

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tree: FilterTree[tuple[str, str], tuple[str, str]] = FilterTree()
        for bare, topic_filter, rules in wild:
            tree.add(bare, (topic_filter, rules), (topic_filter, rules))
        for batch in batches:
            found = [
                (topic, *match)
                for topic in batch.column(0).to_pylist()
                for match in tree.match(topic.encode())
                if _may_read(match[1], topic)
            ]
            names = ("topic", "filter", "rules")
            columns = [pa.array([row[place] for row in found], pa.string()) for place in range(len(names))]
            yield pa.RecordBatch.from_arrays(columns, names=list(names))

    return plain.unionByName(topics.mapInArrow(look, "topic string, filter string, rules string"))


def _may_read(rules: str, topic: str) -> bool:
    if not rules:
        return True
    patterns, default = json.loads(rules)
    levels = topic.encode().split(b"/")
    return bool(
        next((verdict for pattern, verdict in patterns if matches(pattern.encode().split(b"/"), levels)), default)
    )


# -- what came --


def _brought_together(wanted: DataFrame, deliveries: DataFrame) -> DataFrame:
    """A row per subscriber and message, with what was wanted of it and what became of it."""
    shared = f.col("share").isNotNull()
    came = deliveries.where(f.col("origin").isNotNull() & ~f.col("retained")).select(
        f.when(shared, "").otherwise(f.col("node")).alias("node"),
        f.when(shared, "").otherwise(f.col("client")).alias("client"),
        f.when(shared, f.lit(0)).otherwise(f.col("session")).alias("session"),
        f.coalesce("share", f.lit("")).alias("share"),
        *_MESSAGE,
        f.when(f.col("dropped").isNull(), f.col("at")).alias("at"),
        f.when(f.col("dropped").isNull(), f.col("place")).alias("place"),
        "resent",
        "dropped",
        f.col("qos").alias("given"),
    )
    return (
        wanted.unionByName(came, allowMissingColumns=True)
        .groupBy(*_WHO, *_MESSAGE)
        .agg(
            f.max("grade").alias("grade"),
            f.max("published").alias("published"),
            f.max("publisher").alias("publisher"),
            f.max("topic").alias("topic"),
            f.max("ingress_time").alias("ingress_time"),
            f.coalesce(f.max("turn"), f.lit(0)).alias("turn"),
            f.max("open").alias("open"),
            f.max("died").alias("died"),
            f.max("left").alias("left"),
            f.count("at").alias("times"),
            f.min("at").alias("at"),
            f.min("place").alias("place"),
            f.coalesce(f.max("resent"), f.lit(False)).alias("resent"),
            f.max("dropped").alias("dropped"),
            f.max("given").alias("given"),
        )
        .where("grade is not null and (grade.must or times > 0 or dropped is not null)")
        .withColumn("filter", f.col("grade.filter"))
        .withColumn("qos", f.coalesce("given", f.least("published", f.col("grade.qos"))))
    )


def _in_order(by_message: DataFrame, deliveries: DataFrame) -> DataFrame:
    """With `overtaken`: a later message of the same origin and QoS came; `reordered`: it came after a later one of the
    same publisher and topic, among which MQTT promises an order."""
    queue = [*_MEMBER, "origin", "qos", "in_turn"]
    # At QoS 0 nothing waits for its turn.
    came_alone = deliveries.where("share is null and dropped is null and origin is not null and not retained")
    came_alone = came_alone.withColumn("in_turn", f.when(f.col("qos") > 0, _turn(deliveries)).otherwise(0))
    last = came_alone.groupBy(*queue).agg(f.max(_stamp()).alias("last_of_queue"))
    by_message = by_message.withColumn("in_turn", f.when(f.col("qos") > 0, f.col("turn")).otherwise(0))
    by_message = by_message.join(last, queue, "left")
    before = (Window.unboundedPreceding, -1)
    flow = Window.partitionBy(*_WHO, "origin", "qos", "publisher", "topic")
    earlier = flow.orderBy(f.col("place").asc_nulls_first()).rowsBetween(*before)
    came = f.col("times") > 0
    alone = f.col("share") == ""
    has_place = f.col("place").isNotNull()
    newest = f.max(f.when(came & has_place, _stamp())).over(earlier)
    overtaken = alone & f.coalesce(_stamp() < f.col("last_of_queue"), f.lit(False))
    reordered = alone & came & has_place & f.coalesce(newest > _stamp(), f.lit(False))
    return by_message.withColumn("overtaken", overtaken).withColumn("reordered", reordered)


def _passed_by_all(subscriptions: DataFrame, deliveries: DataFrame) -> DataFrame:
    """(share, origin, passed): every member of the shared subscription has had a later message of the origin.

    A member may take its time over one message while others go on: only what is behind all of them is lost.
    """
    members = subscriptions.where(f.col("filter").startswith("$share/") & f.col("until").isNull())
    members = members.select(f.col("filter").alias("share"), *_MEMBER).distinct()
    had = deliveries.where("share is not null and dropped is null").groupBy("share", *_MEMBER, "origin")
    last = members.join(had.agg(f.max(_stamp()).alias("last")), ["share", *_MEMBER])
    passed = last.groupBy("share", "origin").agg(f.min("last").alias("passed"), f.count("*").alias("heard"))
    return passed.join(members.groupBy("share").count(), "share").where("heard = count").drop("heard", "count")


# -- the table --


def summary(judged: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Per subscription (a shared one has neither node nor client) and QoS of delivery:

    expected = delivered + waiting + dropped + lost + uncertain; duplicated, reordered and resent are among the
    delivered.  `reasons` says how many were dropped why; latencies are in milliseconds, from when the message came in
    to when the client had it, each by the clock of its node.
    """
    is_ = {word: f.col("verdict") == word for word in ("delivered", "waiting", "dropped", "lost", "uncertain")}
    latency = f.when(
        is_["delivered"], (f.col("delivered_at").cast("double") - f.col("ingress_time").cast("double")) * 1000
    )
    other = is_["dropped"] & ~f.col("reason").isin(*REASONS)
    table = judged.groupBy("node", "client", "filter", "qos").agg(
        f.count("*").alias("expected"),
        *(f.count_if(condition).alias(word) for word, condition in is_.items()),
        f.count_if(f.col("times") > 1).alias("duplicated"),
        f.count_if("reordered").alias("reordered"),
        f.count_if("resent").alias("resent"),
        *(f.count_if(f.col("reason") == reason).alias(reason) for reason in REASONS),
        f.count_if(other).alias("other"),
        f.percentile_approx(latency, [0.5, 0.99]).alias("percentiles"),
        f.max(latency).alias("max_ms"),
        f.min(f.when(is_["waiting"], f.col("ingress_time"))).alias("waiting_since"),
    )
    table = _less_what_retention_took(table, deliveries)
    reasons = f.create_map(*(part for name in (*REASONS, "other") for part in (f.lit(name), f.col(f"`{name}`"))))
    return table.select(
        "node",
        "client",
        "filter",
        "qos",
        "expected",
        *is_,
        "duplicated",
        "reordered",
        "resent",
        f.map_filter(reasons, lambda _, count: count > 0).alias("reasons"),
        f.col("percentiles")[0].alias("p50_ms"),
        f.col("percentiles")[1].alias("p99_ms"),
        "max_ms",
        "waiting_since",
    )


def _less_what_retention_took(table: DataFrame, deliveries: DataFrame) -> DataFrame:
    """Of what waited too long only the number is known, per session: so many of the lost, then of the waiting, are
    no longer that."""
    taken = deliveries.where("origin is null and dropped is not null").select(
        f.when(f.col("share").isNull(), f.col("node")).otherwise("").alias("node"),
        f.when(f.col("share").isNull(), f.col("client")).otherwise("").alias("client"),
        "messages",
    )
    taken = taken.groupBy("node", "client").agg(f.sum("messages").alias("taken"))
    table = table.join(f.broadcast(taken), ["node", "client"], "left").fillna(0, ["taken"])
    session = Window.partitionBy("node", "client").orderBy("filter", "qos").rowsBetween(Window.unboundedPreceding, -1)
    for word in ("lost", "waiting"):
        left = f.col("taken") - f.coalesce(f.sum(word).over(session), f.lit(0))
        gone = f.greatest(f.lit(0), f.least(f.col(word), left))
        table = table.withColumn("gone", gone)
        for name, by in ((word, -f.col("gone")), ("dropped", f.col("gone")), ("retention", f.col("gone"))):
            table = table.withColumn(name, f.col(name) + by)
        table = table.withColumn("taken", f.col("taken") - f.sum("gone").over(Window.partitionBy("node", "client")))
    return table


def idle(table: DataFrame, subscriptions: DataFrame) -> DataFrame:
    """Clients that are subscribed now, and of which the table says nothing: no message had to come to them.

    Members of shared subscriptions are not among them, as the table does not name any.
    """
    standing = subscriptions.where(f.col("until").isNull() & ~f.col("filter").startswith("$share/"))
    return standing.select("node", "client").distinct().join(table, ["node", "client"], "left_anti")


def violations() -> Column:
    """Which rows of the table break the contract: at QoS 0 nothing comes twice, at QoS 1 nothing is lost, at QoS 2
    neither, and everything comes in order."""
    lost = (f.col("qos") > 0) & (f.col("lost") > 0)
    twice = (f.col("qos") != 1) & (f.col("duplicated") > 0)
    return lost | twice | (f.col("reordered") > 0)


def offending(judged: DataFrame) -> DataFrame:
    """The messages that were not simply delivered once, in order, and are not waiting."""
    return judged.where("verdict in ('lost', 'dropped', 'uncertain') or times > 1 or reordered")
