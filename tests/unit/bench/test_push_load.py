from __future__ import annotations

import asyncio
from functools import partial

from federator.aggregator.ingest.frames import Changes, decode
from federator.v1 import ingest_pb2
from federator.wire.body import BodyCodec, decode_body
from tests.bench.push_load import PODS, PushedPod
from tests.bench.stamp import Stamp, read_stamp


async def test_pushed_pods_are_what_an_aggregator_takes() -> None:
    state = PushedPod(7).state(42, Stamp(3, 99))
    frame, refused = await decode(
        ingest_pb2.PushRequest(snapshot_items=ingest_pb2.SnapshotItems(type=PODS, objects=[state])),
        BodyCodec(),
        partial(asyncio.sleep, 0),
    )
    assert isinstance(frame, Changes)
    assert not refused
    assert frame.changes[0].name == state.name
    raw = decode_body(state.body)
    assert 2_000 < len(raw) < 3_500
    assert read_stamp(raw) == Stamp(3, 99)
    assert b'"resourceVersion":"42"' in raw
