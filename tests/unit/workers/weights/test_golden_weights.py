"""Golden files of published weights: they open, and have the digest that was recorded.

`tests/golden/weights` holds one version as a folder and as a mapped file, and their digests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rftd.workers.weights.channel import WeightsRef
from rftd.workers.weights.checksum import checksum, form_of
from rftd.workers.weights.registry import open_weights
from rftd.workers.weights.tensor_digests import TensorDigests
from rftd.workers.weights.torch_bytes import tensors_of

GOLDEN = Path(__file__).parents[3] / "golden" / "weights"
SAID = json.loads((GOLDEN / "digests.json").read_text())


@pytest.mark.parametrize(("method", "name"), [("checkpoint", "v3-g1"), ("memory", "v3-g1.mapped")])
def test_what_was_published_opens_and_has_the_digests_that_were_recorded(method: str, name: str) -> None:
    path = str(GOLDEN / name)
    ref = WeightsRef(
        version=3, generation=1, path=path, manifest=SAID["manifest"][method], checksum=SAID["checksum"], method=method
    )
    with open_weights(ref) as found:
        assert found["head"] is found["embedding"]
        assert checksum(found) == SAID["checksum"]
        for digests in (TensorDigests(threads=1), TensorDigests(threads=2)):
            assert digests.of(form_of(SAID["checksum"]), tensors_of(found)) == SAID["checksum"]
