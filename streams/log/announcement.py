"""`announcement_digest`: what a trainer's step says of the announcement of weights that it had read last.

`weights.published` lies beside the spine, so the spine's own digest does not cover it. A step repeats the newest one by
this digest: whoever rewrites a path there has to rewrite the spine after it too.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from rftd.streams.events.weights import WeightsPublished


def announcement_digest(event: WeightsPublished) -> bytes:
    """The blake2b-16 of all that explorers load weights by."""
    fields = (
        event.version,
        event.generation,
        event.method,
        event.path,
        event.host,
        event.manifest,
        event.checksum,
        event.trained,
        event.size_bytes,
    )
    return blake2b(msgspec.msgpack.encode(fields), digest_size=16).digest()
