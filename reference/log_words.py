"""What a log message means and what to do about it. Every warning and error has words here."""

from collections.abc import Mapping
from typing import Final

WORDS: Final[Mapping[str, str]] = {
    # apps
    "session ended without commit or rollback, its events are lost: %s": (
        "A session emitted events and was dropped without commit or rollback. Look for a code path without either."
    ),
    "relays were not woken, they poll: %s": (
        "The wake-up after a commit could not be sent; the relay finds the events at its next poll. Nothing to do."
    ),
    # both processes
    "waiting for a service": "Database or broker is away at the start. The process ends after its `start_s`.",
    "broker lost": "The connection to the broker ended. It comes back by itself; nothing is charged for it.",
    "broker connected": "The connection to the broker stands.",
    "broker not reached": "No connection to the broker for now; it is tried again.",
    "cannot be woken": "It looks by itself instead. Often: the address is a pooler's, which carries no notifications.",
    "database lost": "The connection to the database ended, or it is a standby now. Work pauses until it is back.",
    # relay
    "lane not announced": "A queue exists, and its group could not be told of it. It is told again within ten minutes.",
    "janitor could not work": "Old events and keys stay for now; it tries again.",
    "slot kept": "A part of the log is past its retention and cannot be emptied: `reason` says what keeps it.",
    "leases lost": "The relay renewed too late and others have its buckets. Often: its machine stalls.",
    "lane refused": "A queue cannot be declared or published to. Its events wait in the log; others go on.",
    "event deferred": "The event could not be published and is tried again: `outbox deferred list`.",
    "event dead": "The event gets no further try: `outbox deferred show`, then `retry` or `discard`.",
    "void deferred": "What stands for a discarded event could not be published and is tried again.",
    "lane silent": "A queue confirms nothing while others do. It is asked until it answers; others go on.",
    "replay held": "A replay cannot go on for this queue; it is tried again, and other tenants' parts go on.",
    "replays could not go on": "Database or broker are away from the replays; they go on by themselves.",
    "broker blocked": "The broker asks for silence: it is short of memory or disk. Free some; publishing goes on then.",
    "broker unblocked": "The broker takes publishes again.",
    "broker unreachable": "No connection to the broker for now; it is tried again.",
    "consumers are not woken, they look by themselves": "A notification could not be sent. Nothing to do.",
    "work beside the engine failed": "A bug in the janitor or in replays, with its traceback. Report it.",
    # consumer
    "connecting failed": "A bug in connecting to the broker, with its traceback. It is tried again; report it.",
    "alert raised": "Something needs a person: see [the alerts](../explanation/failures.md).",
    "handler abandoned": "A handler went on past its deadline and could not be stopped. Give its own calls deadlines.",
    "abandoned handler ended": "One of these has ended at last; what it came to counts for nothing.",
    "alert not sent": "An alert did not reach its target. It is in the log all the same.",
    "paused": "Nothing that fits starts any more: `outbox paused` says who wanted that, and why.",
    "pause ended": "What was paused goes on.",
    "stopped while handlers ran": "The drain's time was up. What ran comes again; the ledger tells what was done.",
    "dead process found": "A process of the group died, or stalled for longer than its lease. What it held is free.",
    "lease lost": "This process renewed too late and was taken for dead. Often: handlers block its event loop.",
    "claim taken over": "A leased attempt of a process that is gone is made again.",
    "found already done": "The hook `already_done` says that an attempt of a process that is gone had its effect.",
    "claim lost": "A leased attempt took longer than its process's lease held; what it did is not noted as done.",
    "not written down yet": "The outcome of an attempt waits for the database.",
    "queue lost": "A queue is gone, refused or does not answer; it is looked for again.",
    "delivery from an unknown queue": "A bug: report it. The message goes back to its queue at the next reconnect.",
    "work row lost to another process": "It took longer than this process's lease; the other one handles it.",
    "delivery not handled": "A bug of ours, with its trace: report it. The event is not charged, and comes again.",
    "permits lost": "This process was taken for dead under a limit of the fleet; it asks anew.",
    "permits of dead processes freed": "What dead processes might run is free for the others.",
    "isolated process not started": "A process for an isolated handler ends as it starts; its own log lines say why.",
    "nobody reads what waits": "No process that runs knows the version of these events: they are dead letters again.",
    "refused by the broker": "The broker gave an event up: a queue was full, or a delivery limit was reached.",
    "announcement not understood": "Something else than a relay writes to the group's directory queue.",
    "suspect's process died": "An event ended the process that ran it alone; the second time it is dead as `poison`.",
    "transaction open for long": "A handler's transaction holds locks and vacuum back. See what it waits for.",
    "broker connection failed": "A bug of ours, with its traceback: report it. The connection is made again.",
    "attaching failed": "A bug of ours, with its traceback: report it. The connection is made again.",
    "suspect out of memory": "A handler took more than `OUTBOX_CONSUMER_SUSPECT_MEMORY_MB` for one event.",
    "consumer cancelled by the broker": "Its queue was deleted, or has no leader for now; it is attached to again.",
    "extra consumer refused": "A queue is served by one consumer instead of two. Nothing to do.",
    "channel lost": "The broker closed a channel; its queues are attached to again.",
    "last settlements not written": "The connection ended in a drain: some events come again, and the ledger tells.",
    "job failed": "A statement of upkeep failed; it is tried again. Often: the schema is older than the code.",
    "worker died": "A worker process ended. Another takes its place, after `again_s`.",
    "worker ended for good": "A worker found its settings or the schema wrong: the supervisor ends too.",
    "worker not started": "A worker process could not be started; it is tried again.",
    "worker killed": "A worker reported nothing for `OUTBOX_CONSUMER_SILENT_S`, or would not end.",
    "broker connection did not close": "It is left behind; the broker hands out again what it held.",
    "parent gone": "The supervisor is gone: its workers drain and end.",
}
