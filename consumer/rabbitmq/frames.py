"""The frames that settle deliveries on one channel, as few as can be."""

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from pamqp import commands

_pack: Final = struct.Struct(">BHIIQBB").pack
_METHOD: Final = 1
_PAYLOAD_BYTES: Final = 13
_END: Final = 0xCE
_MULTIPLE: Final = 1
_REQUEUE: Final = 2


def settle_frames(tags: Sequence[int], *, unsettled: Iterable[int], channel: int, requeue: bool) -> bytes:
    """Return frames that settle exactly *tags* on the channel of number *channel*.

    One frame can speak for a delivery and all before it, which is right only where nothing else before it is
    unsettled: for the longest part of *tags* that is also the beginning of *unsettled*.

    Args:
        tags: ascending, each of them in *unsettled*.
        unsettled: every unsettled tag of the channel, ascending.
        requeue: hand back instead of acknowledging.
    """
    method, flags = (commands.Basic.Nack.index, _REQUEUE) if requeue else (commands.Basic.Ack.index, 0)

    def frame(tag: int, more: int = 0) -> bytes:
        return _pack(_METHOD, channel, _PAYLOAD_BYTES, method, tag, flags | more, _END)

    leading = 0
    for tag, oldest in zip(tags, unsettled, strict=False):
        if tag != oldest:
            break
        leading += 1
    if leading > 1:
        return frame(tags[leading - 1], _MULTIPLE) + b"".join(map(frame, tags[leading:]))
    return b"".join(map(frame, tags))
