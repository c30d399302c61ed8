"""What the consuming side leans on inside the AMQP client; a new minor version of it may change any of this."""

import inspect

from aiormq.channel import Channel
from aiormq.connection import Connection

from consumer.rabbitmq.channel import Attachment
from consumer.rabbitmq.connection import PlainConnection


async def test_what_is_written_never_waits_and_never_pushes_out_the_clients_own_answers() -> None:
    assert Connection.FRAME_BUFFER_SIZE == 10
    assert PlainConnection("amqp://guest:guest@localhost/").write_queue.maxsize == 0


async def test_a_connection_is_given_up_after_two_missed_heartbeats() -> None:
    assert Connection.HEARTBEAT_GRACE_MULTIPLIER == 3
    assert PlainConnection.HEARTBEAT_GRACE_MULTIPLIER == 2
    assert "HEARTBEAT_GRACE_MULTIPLIER" in inspect.getsource(Connection.__init__)


def test_a_channels_frames_pass_through_put_get_and_task_done_alone() -> None:
    assert inspect.getsource(Connection).count("ch.frames.put(") == 1
    assert "ch.frames" not in inspect.getsource(Connection).replace("ch.frames.put(", "")
    used = inspect.getsource(Channel).split("self.frames")[1:]
    assert sorted(each.split("(")[0].strip() for each in used) == [
        ".get",
        ".task_done",
        ": asyncio.Queue = asyncio.Queue",
    ]


def test_a_channel_without_a_number_is_chosen_by_what_stands_in_the_connections_channels() -> None:
    source = inspect.getsource(Connection)
    assert "channel_number in self.channels" in source
    assert "self.channels[channel_number] = channel" in source


def test_no_two_attachments_share_a_consumer_tag() -> None:
    """rabbitmq/rabbitmq-server#5927"""
    tags = {Attachment(queue="q", prefetch=1, is_extra=False).tag for _ in range(100)}
    assert len(tags) == 100
