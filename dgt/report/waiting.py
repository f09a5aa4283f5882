"""Who is slow? In step with its neighbours a slow node hardly waits, and all others wait for it."""

from __future__ import annotations

import statistics

from dgt.runs.run import Run, is_number

LATE = 0.5  # share of the evaluations, the last ones, that count
LESS = 0.25  # of what the others wait, at most, if one is slow
MUCH = 0.1  # share of the time that the others wait, at least, if it matters


def slow_node(run: Run) -> str:
    """'node 3 is slow: ...', from what the nodes waited over the later half of the run; empty if none stands out."""
    seconds = {at: value for at, value in run.curve("seconds") if is_number(value)}
    rows = [row for row in run.nodes if isinstance(row.get("waited"), list) and row["iteration"] in seconds]
    if len(rows) < 2 or not run.networks:
        return ""
    first, last = rows[int(len(rows) * LATE) - (len(rows) < 3)], rows[-1]
    names, before, after = run.networks[-1].get("nodes", []), first["waited"], last["waited"]
    time = seconds[last["iteration"]] - seconds[first["iteration"]]
    if not (len(names) == len(before) == len(after) > 2 and all(map(is_number, [*before, *after])) and time > 0):
        return ""
    waited = [b - a for a, b in zip(before, after, strict=True)]
    least = min(range(len(waited)), key=waited.__getitem__)
    others = statistics.median(value for rank, value in enumerate(waited) if rank != least)
    if waited[least] < 0 or waited[least] > LESS * others or others < MUCH * time:
        return ""
    return (
        f"node {names[least]} is slow: from iteration {first['iteration']} to {last['iteration']} it waited "
        f"{waited[least]:.2g} s for its neighbours, the others {others:.2g} of {time:.2g} s; adapt=true with "
        "local_steps has it leave out steps"
    )
