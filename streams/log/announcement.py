"""`announcement_digest`: a digest of the newest announcement of weights read by a trainer, carried by its steps.

`weights.published` lies beside the spine, outside the spine's own digest. A step repeats the newest announcement as a
digest: rewriting a path there requires rewriting the spine after it too.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from rftd.streams.events.weights import WeightsPublished


def announcement_digest(event: WeightsPublished) -> bytes:
    """Computes the blake2b-16 of all fields by which explorers load weights."""
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
