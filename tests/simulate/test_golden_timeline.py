"""One timeline kept as a file, so that a change of the engine that moves anything is seen.

Where the change is meant, write the file anew: `python tests/simulate/test_golden_timeline.py`.
"""

import json
from pathlib import Path

from pytest import approx
from small_runs import case, chain, star

from plait.simulate import Timeline

GOLDEN = Path(__file__).parent / "golden" / "two_one_two.json"


def timeline() -> Timeline:
    """Three stages on 2 + 1 + 2 devices of mixed speed, a skip, sums of gradients that the next step uses; 1F1B."""
    cluster = star(5, bandwidth=5, latency=0.125, speeds=[1.0, 0.5, 2.0, 1.0, 1.0])
    graph = chain(6, skips=[(0, 4), (1, 5)], mixers=[5], parameter=8)
    return case(graph, cluster, [2, 1, 2], micro_batches=4, rows=3, overlap="full").run(step=0.25)


def test_the_timeline_is_the_one_kept():
    kept = Timeline.from_dict(json.loads(GOLDEN.read_text()))
    found = timeline()
    assert found.step_seconds == approx(kept.step_seconds)
    assert [s[:3] for s in found.spans] == [s[:3] for s in kept.spans]
    assert [s.start for s in found.spans] == approx([s.start for s in kept.spans])
    assert [s.end for s in found.spans] == approx([s.end for s in kept.spans])


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(timeline().to_dict(), indent=0) + "\n")
