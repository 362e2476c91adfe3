"""The guard: it keeps out a master that may have forgotten locks, or whose clock has jumped.

A lock rests on a quorum of masters that remember it. A master that was restarted without its data, flushed or set
forward in time would help a second client to win the same lock. The guard quarantines such a master until every lock
that it may have forgotten has expired: for the longest ttl in use and its drift, by the client's own clock.
Source: the "delayed restarts" of
https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/

How the guard detects this:
  * Each master has a marker, a key beside the locks. It names the server process (run_id), the time since when that
    process remembers, and the list of masters. Every handshake reads it, and a restart ends all connections, so no vote
    comes from a process whose marker was not read. If the marker names another process, or only this master has none,
    the master has lost its memory. The client that sees this writes a new marker with the time, for all clients.
  * Once a second, while locks are acquired or extended, a pulse precedes the commands. It compares the marker and asks
    for the server's clock. A wrong answer arrives before the votes behind it, and ends the connection.
  * A master that pushes invalidations reports a flush.
  * If the clocks of a quorum jump by the same time, and no other clock agrees with ours, our own clock stood still, as
    in a suspended virtual machine. Then no master is quarantined, and the locks that are held are in doubt.
  * If all masters can be read and none has a marker, they are new (see `founding`). Masters that lost their memory all
    at once look the same; only clients that knew them notice. If some cannot be read, one of them may have a marker, so
    the others wait. After the largest `max_ttl` they count as masters that have forgotten.
  * A marker that no client reads expires after 35 days, so a job that runs once a month finds it.

How long a master is kept out:
  * G1. A marker has an identity, which never changes, and a horizon: the longest ttl in use. A pulse compares only the
    identity.
  * G2. A pulse raises the horizon to at least the ttl that it names. The horizon of an identity never falls.
  * G3. A vote for a ttl counts only from a master that had stored the ttl in its horizon, on the same connection,
    before the first byte of the attempt left for any master (see `wire.engine.horizon`).
  * G4. A master that has forgotten gets an unsure marker, which keeps it out for the largest `max_ttl`. Then the other
    masters are asked. A witness is a master whose marker and process are unchanged, and that no unsure marker keeps
    out. With N - q + 1 witnesses of N masters and a quorum of q, the marker becomes sure: it keeps the master out for
    the longest horizon of the witnesses, from when its unsure marker was seen. Each write of a marker compares the
    whole text, so a horizon that was raised meanwhile forces another look.
  * G5. The largest `max_ttl` of any client counts for all. A client with a larger one writes it into each marker, first
    as `raised`. It becomes `max_ttl` when all masters had it at one moment, or when the marker of another master has
    it. Until a marker has it, no client uses a longer ttl. When a new marker allows less, the value that a client
    remembers counts only once another marker confirms it. A master with an unsure marker also stays out until as many
    others as a quorum needs were read after this client first saw that marker, because they may know of a larger one.

Why that is enough: let a lock with a ttl stand on a quorum, one of which forgets it. Every other master of that quorum
had stored the ttl before the first vote. Any N - q + 1 masters without the forgetful one contain one of them.

A single master stays in use, unless `Guard.strict` is set (R1): a quarantine would bind only clients that knew it
before, and so exclude no second holder. The client that notices the loss writes a new marker.
  * R2. Each lease that was requested before is in doubt (`quorum.policy.Doubts`): `remaining()` is 0 until an extension
    by the rest of its time, which compares the token, has succeeded.
  * R3. A lease in doubt is not handed off and not re-entered. A renewal never makes a key that is gone.
  * FE1. The numbers of fenced locks exceed the time of each marker by an hour. So they grow although the master has
    forgotten the last one.

The package does no I/O and reads no clock; the drivers connect it with the sockets. `admission` has the table that
decides whether a master may vote, by the evidence that `evidence` derives from a handshake.
"""
