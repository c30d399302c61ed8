"""Two event loops hand each other work, in order, with one wake-up for all that is waiting."""

import asyncio
import threading
from collections.abc import Sequence

from consumer.threaded.thread import Mailbox, WireThread
from tests.support.wait import until


async def test_items_arrive_in_order_and_in_batches_from_another_thread() -> None:
    batches: list[Sequence[int]] = []
    mailbox: Mailbox[int] = Mailbox(batches.append)
    mailbox.open(asyncio.get_running_loop())

    def send() -> None:
        for number in range(2000):
            mailbox.post((number,))

    sender = threading.Thread(target=send)
    sender.start()
    sender.join()  # this loop stood still meanwhile, so all of them are waiting now
    await until(lambda: sum(map(len, batches)) == 2000)
    assert [number for batch in batches for number in batch] == list(range(2000))
    assert len(batches) <= 2


async def test_what_is_posted_before_the_opening_waits_for_it() -> None:
    heard: list[str] = []
    mailbox: Mailbox[str] = Mailbox(heard.extend)
    mailbox.post(["a", "b"])
    assert heard == []
    mailbox.open(asyncio.get_running_loop())
    assert heard == ["a", "b"]


async def test_posting_to_a_loop_that_has_ended_is_no_error() -> None:
    mailbox: Mailbox[str] = Mailbox(lambda _: None)

    async def short_lived() -> None:
        mailbox.open(asyncio.get_running_loop())

    await asyncio.to_thread(lambda: asyncio.run(short_lived()))
    mailbox.post(["too late"])


async def test_an_item_posted_while_others_are_handled_is_handled_too() -> None:
    heard: list[int] = []
    mailbox: Mailbox[int]

    def handle(items: Sequence[int]) -> None:
        heard.extend(items)
        if len(heard) < 5:
            mailbox.post((len(heard),))

    mailbox = Mailbox(handle)
    mailbox.open(asyncio.get_running_loop())
    mailbox.post((0,))
    await until(lambda: heard == [0, 1, 2, 3, 4])


async def test_a_wire_thread_runs_beside_a_loop_that_is_busy() -> None:
    ticks = 0
    stopping = threading.Event()

    async def tick() -> None:
        nonlocal ticks
        while not stopping.is_set():
            ticks += 1
            await asyncio.sleep(0.001)

    thread = WireThread("ticker", tick)
    burnt = 0
    while ticks < 20:  # never awaits: the loop of this test stands still
        burnt += 1
    stopping.set()
    assert await thread.ended(within_s=5)
    assert burnt


async def test_a_wire_thread_that_does_not_end_is_said_so() -> None:
    ending = threading.Event()

    async def stay() -> None:
        while not ending.is_set():
            await asyncio.sleep(0.001)

    thread = WireThread("stayer", stay)
    assert not await thread.ended(within_s=0.05)
    ending.set()
    assert await thread.ended(within_s=5)
