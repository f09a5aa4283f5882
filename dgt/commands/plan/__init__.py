"""`dgt plan`: for given weights, which strategy, algorithm and graph, how large a step, how many bytes, how long.

`planning.py` goes from overrides to a ranked list, `finding.py` makes the trials of lr=find, `answer.py` has the answer
as plain values, `words.py` prints it; the mathematics is in `network/systems/`, `moments.py` and `stability.py`.
"""

from __future__ import annotations

import argparse
import json

from dgt.commands.base import Command, choices, refuse_ranks


def run(options: argparse.Namespace) -> None:
    """Print the ranked candidates, and the command that trains the best."""
    from dgt.commands.plan import answer, finding, planning, words
    from dgt.config import fragment

    refuse_ranks("plan")
    finds = finding.WORD in options.overrides
    found = planning.plan([word for word in options.overrides if word != finding.WORD])
    if finds:
        found = finding.with_lr(found)
    values = answer.as_dict(found)
    folder = found.settings.write
    if folder is not None:
        fragment.write(answer.advised(found), folder)
    values["recommendation"]["reason"] = words.reason(values)
    print(json.dumps(values, indent=2) if options.json else words.text(values, folder))


def settings() -> list[str]:
    from dgt.commands.plan.settings import settings

    return ["of the plan:", *(f"  {line}" for line in settings()), "", *choices()]


COMMAND = Command(
    name="plan",
    help="for these weights: which strategy, algorithm and graph, how large a step, how many bytes, how long",
    example="dgt plan weights=A topology=ring,one_peer algorithm=gradient_tracking,exact_diffusion budget.degree=8 "
    "bandwidth=1.2 latency=50 compute=20",
    run=run,
    settings=settings,
    order=5,
    composes=True,
    computes_alone=True,
)
