"""The shards in memory: what no test of a worker would notice."""

from streamdp.data.records import Shard
from tests.support.memory import MemoryShards


def test_a_poll_of_shards_returns_as_many_as_it_may() -> None:
    first, second = Shard("t", 0), Shard("t", 1)
    source = MemoryShards({shard: [({"a": 1.0}, 1.0, None, None)] * 5 for shard in (first, second)}, ["a"])
    for shard in source.assigned():
        source.start(shard, None)
    assert [[(shard, len(raw)) for shard, raw in source.poll(most, 0.0)] for most in (2, 4, 9)] == [
        [(first, 2)],
        [(first, 3), (second, 1)],
        [(second, 4)],
    ]
