"""Who was away from when to when, from the memberships that events.jsonl tells."""

from __future__ import annotations

from dgt.runs.run import Run

MOST = 12  # absences that are named


def absences(run: Run) -> str:
    """'away: node 3 from iteration 41 to 394, node 5 from iteration 800 on'; empty if nobody was."""
    events = [event for event in run.events if event.get("event") == "membership"]
    there: set[int] = set(run.networks[0].get("nodes", [])) if run.networks else set()
    since: dict[int, int] = {}
    found = []
    for event in events:
        members = event.get("members")
        if not isinstance(members, list) or not all(isinstance(name, int) for name in members):
            continue
        now, at = set(members), event["iteration"]
        since |= dict.fromkeys(sorted((there | now) - now - since.keys()), at)
        found += [f"node {name} from iteration {since.pop(name)} to {at}" for name in sorted(now & since.keys())]
        there |= now
    found += [f"node {name} from iteration {at} on" for name, at in sorted(since.items())]
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return f"away: {', '.join(found[:MOST])}{more}" if found else ""
