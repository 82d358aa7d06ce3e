"""MQTT+: subscriptions that compute.  `$AVG/room/+/temp` gives the average of what the rooms said last.

* `grammar` (with `keywords`, `functions`) parses an expression; `types` checks it; `explain` describes it to a user.
* `engine` computes it, message by message: `payload_values` and `sources` read payloads; `stages`, `spatial`, `windows`
  and `sliding_span` are its stages; `aggregates`, `sketch` and `exact_sum` its arithmetic.
* `split` cuts it in two.  Many places compute the inner half (`part_engine`, `window_parts`); one merges the parts and
  computes the outer half (`part_merging`).  `window_division` does this for Spark, where the places are tasks.
* `reference` computes it once more, slowly and plainly, for the tests.

No I/O, no clock, no dice: the caller passes the time.

Meaning of an expression
------------------------
`$GT;25$HOURLYMAX/plant/#` is read from right to left: messages under `plant/#`, the greatest of each hour per topic, of
these the ones above 25.  Each operator is a stage; what goes from stage to stage is an *update*: (time, {key: value},
whole).  A key is a topic, or empty behind an aggregate.  A key may lose its value.  A whole update is the entire set
(what a window gives); any other is a change of one key.

* Source: one message changes one key.  Its number is the payload's text, or a field of a JSON or CBOR payload.  A
  payload without a number is ignored and counted.  COUNT and CONTAINS take any payload.
* Rule (GT GTE LT LTE EQ NEQ CONTAINS): key by key; a value that fails is none.  `$AVG$GT;5/t/+` is the average of the
  topics that stand above 5; a topic that falls below leaves it.
* DELTA, RATE: the difference to the topic's previous value; that difference per second.  The first value has none.
* Spatial (AVG SUM MIN MAX COUNT STDDEV MEDIAN QUANTILE;q LAST): over the last value of each key, at every update.  A
  value expires some time after its topic's last message; that is noticed when something arrives.  LAST is the newest
  value, of several of one instant the one whose topic comes first.  Of nothing: COUNT gives 0, all others no value.
* Sliding (TMPAVG;H:MM:SS ...): over all values of all keys of the last span, at every value that comes.  A value as old
  as the span is out.
* Periodic (DAILYAVG ...): per key, within windows that follow each other without a gap, from the instant of
  subscription or by the wall clock (UTC).  A window's end belongs to the next one.  At the end: one whole set.  A
  window in which nothing came gives nothing.
* Result: no value, no message.  A number is written as Python writes a double (`25.0`).  A set is written as a list in
  the order of the topics (`[1.0, 2.0]`), unless only one key is possible (no wildcard, or behind an aggregate): then it
  is a number.  Behind nothing but rules the message itself goes on, unchanged.

Why two engines give the same answer to the bit
-----------------------------------------------
Between stages values are doubles.  Sums are held as integers, multiples of 2^-128 (`exact_sum`), so the order of adding
does not matter and taking away is exact; each answer is rounded once, correctly.  Quantiles come from counts in fixed
buckets (`sketch`).  Times are integers, microseconds since the epoch.  Merged aggregates are those of the values
together.
"""
