"""`rftd lineage` against a real daemon: a tree, a graph, data, and what is refused."""

from __future__ import annotations

import json

from synthetic.daemon.command_line import Rftd, Served


def test_a_tree_both_ways(rftd: Rftd) -> None:
    said = rftd("lineage", "small/weights/4", "--depth", "3")
    assert said.status == 0, said.err
    lines = said.out.splitlines()
    assert lines[0].startswith("weights small/weights/4.0  published")
    up, down = lines.index("made of:"), lines.index("became:")
    assert lines[up + 1].startswith("└─ made by: step small/step/4.0")
    assert lines[up + 2].startswith("   ├─ executed: batch ")
    assert "8 items of 2 tasks" in lines[up + 2]
    assert lines[up + 3].startswith("   │  ├─ item: experience ")
    assert any("trained from: weights small/weights/3.0" in line for line in lines[up:down])
    assert any(line.startswith("├─ drawn by, tokens 0-") for line in lines[down:])
    assert any("answered by: eval" in line and "held_out: 0.75" in line for line in lines[down:])


def test_one_direction_bounds_and_everything(rftd: Rftd, served: Served) -> None:
    up = rftd("lineage", "small/weights/4", "--direction", "up", "--depth", "1")
    assert "became:" not in up.out
    assert up.out.rstrip().endswith("…")
    run = rftd("lineage", str(served.parts.run.id), "--direction", "down", "--depth", "1")
    assert run.out.count("of: task") == served.parts.run.groups
    everything = rftd("lineage", "small", "--all", "--depth", "2", "--direction", "down")
    assert everything.status == 0
    assert "more of kind" not in everything.out


def test_a_graph_and_data(rftd: Rftd) -> None:
    dot = rftd("lineage", "small/step/3", "--format", "dot", "--depth", "1").out
    assert dot.startswith("digraph lineage {")
    assert dot.rstrip().endswith("}")
    assert '"small/step/3.0" -> "small/weights/3.0" [label="made by"];' in dot
    data = json.loads(rftd("lineage", "small/step/3", "-o", "json", "--depth", "1").out)
    assert data["root"] == "small/step/3.0"
    assert sorted(data) == ["bound", "cut", "down", "more", "nodes", "root", "up"]
    assert sorted(data["nodes"][0]) == ["experiment", "id", "kind", "made_at", "text"]


def test_what_is_refused(rftd: Rftd, served: Served) -> None:
    for wanted, status, words in (
        ("nobody", 3, "no experiment 'nobody'"),
        ("small/step/99", 3, "no small/step/99"),
        ("small/mood/1", 2, "NAME/task/STAGE.SEQUENCE"),
        (served.parts.run.id.hex[:8], 2, "names several things"),
        ("", 2, "id"),
    ):
        said = rftd("lineage", wanted)
        assert (said.status, said.out) == (status, ""), wanted
        assert words in said.err, said.err
    assert rftd("lineage", "small", "--depth", "-1").status == 2
    assert rftd("lineage", "small", "--server", "http://127.0.0.1:9").status == 4
