"""Shuffle-private learning by three parties in processes of their own, over Kafka or anything that keeps a log.

    devices    read `points`, write `messages`      each person's record, which answers once   (`devices`)
    shuffler   reads `messages`, writes `shuffled`  a whole batch, mixed, or nothing           (`shuffler`)
    learner    reads `shuffled`, writes `points`    the model                                  (`learner`)

All three hold the same job and derive from it, each for itself, which batch follows which and what sum its people take
part in (`agreement`). So a device takes nothing from the learner but a point, which may come from anywhere, and the
shuffler takes nothing from it at all. `wire` is what the messages look like.

**Who sees what.** The learner, and everybody who can read `shuffled`, sees the mixed bits of whole batches and how
many answered: that is what the guarantee of `streamdp.aggregation.shuffled_sum` is for. The shuffler and the brokers
see each
message, hence somebody's bits before they are mixed, and where it came from: people must trust them not to show it.
So run `messages` on brokers of the shuffler's, give the right to read it to the shuffler alone, and the right
to write `shuffled` to the shuffler alone. A message holds the batch, the bits and 16 random bytes: no subject, no
position, and the time of the batch's point in place of its own. What was forwarded is deleted from `messages`. Nobody
logs a message, a vector or a bit; nothing of a batch is on the shuffler's disk.

**What must hold for privacy.** (1) A record is in one message, and a message in one batch. (2) What is forwarded of a
batch depends on one set of messages, of at least as many people as were agreed on, however often it is forwarded. Two
permutations of one set tell the same, its number of ones in each coordinate; two sets would tell their difference,
which may be a single person's bits.

* (1) A device notes that it has answered *before* it sends, so a crash between the two loses the answer. The 16
  random bytes let the shuffler drop a message that some client or proxy sends again.
* (2) When enough have answered, the shuffler first commits *which* messages the batch has, as two offsets, to its
  store, and then forwards. It forgets the messages in memory only; after a crash it reads the very same ones again
  from the topic, applies the same rules, mixes and forwards. Kafka's transactions would not do: what was written in a
  transaction that a crash aborts stays readable to those who ask for uncommitted messages, the untrusted learner
  among them, and the second attempt could hold other people. Where the topic no longer has a batch that was decided
  on, the batch is collected anew from later messages: other people, so (2) holds for each. The store lets one
  shuffler in at a time, and a shuffler with an empty store refuses topics into which something was forwarded already.
* Fewer than all: with `minimum_share` below 1 the shuffler forwards after a while with that share of the people.
  Devices hold the same share (it is part of the agreement), so nobody can lower it later, and what a batch spent is
  counted from how many answered.

**What must hold for counting.** The learner commits state, offset, counts and spends in one transaction and then
announces the next point. It reads the log again from there after a crash, passes over what it has absorbed (a batch
that was forwarded twice, say), and announces the same point. If batches are missing it stops.

| crash of | before | after | what is lost |
|---|---|---|---|
| device | noting that it answers | | nothing |
| device | | noting, before the broker has the message | the answer: it is never sent |
| shuffler | the decision is committed | | nothing: messages are read again |
| shuffler | | the decision, at any moment | nothing: the same messages are forwarded (again) |
| learner | its commit | | nothing: the batch is absorbed again from the same bits |
| learner | | its commit, before the announcement | nothing: it is made at the start |
"""
