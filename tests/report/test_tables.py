"""Tables, as they are printed; the one of gaps among them."""

from dgt.report.tables import gap_lines, markdown_table


def test_a_bar_in_a_value_begins_no_column_in_markdown() -> None:
    assert markdown_table([{"path|": "a|b", "loss": "1.5"}]).splitlines() == [
        r"| path\| | loss |",
        "| ------ | ---: |",
        r"| a\|b   |  1.5 |",
    ]


def test_gaps_stand_beside_the_published_ones_and_better_graphs_beside_those() -> None:
    ring = {"nodes": 16, "topology": "ring", "weights": "A", "gap": 0.03421, "published": "0.034", "tailored_for": None}
    wrong = ring | {"gap": 0.05, "optimal": 0.0523}
    drawn = ring | {"topology": "tailored", "tailored_for": "A", "published": "0.311", "gap": 0.2, "optimized": 0.4427}
    lines = gap_lines([ring, wrong, drawn | {"factor": 1.4235}]).splitlines()
    assert lines[0].split() == [
        "nodes",
        "topology",
        "weights",
        "gap",
        "published",
        "same",
        "optimized",
        "x",
        "published",
        "best",
        "weights",
    ]
    assert lines[2].split() == ["16", "ring", "A", "0.034", "0.034", "yes"]
    assert lines[3].split() == ["16", "ring", "A", "0.050", "0.034", "NO", "0.052"]
    assert lines[4].split() == ["16", "tailored", "for", "A", "A", "0.200", "0.311", "other", "draw", "0.443", "1.42x"]
    assert "best weights" in lines[-1]
    assert "best weights" not in gap_lines([ring])
