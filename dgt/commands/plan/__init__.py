"""`dgt plan`: for given weights, which strategy on which graph, how large a step, how many bytes.

`planning.py` goes from overrides to a ranked list, `candidates.py` examines one network, `finding.py` makes the trials
of lr=find, `words.py` prints it; the mathematics is in `network/plan.py`.
"""

from __future__ import annotations

import argparse
import json

from dgt.commands.base import Command, choices, refuse_ranks


def run(options: argparse.Namespace) -> None:
    """Print the ranked strategies and graphs, and the command that trains the best."""
    from dgt.commands.plan import finding, planning, words
    from dgt.config import fragment

    refuse_ranks("plan")
    finds = finding.WORD in options.overrides
    found = planning.plan([word for word in options.overrides if word != finding.WORD])
    if finds:
        found = finding.with_lr(found)
    answer = planning.as_dict(found)
    folder = found.settings.write
    if folder is not None:
        fragment.write(planning.advised(found.best.config), folder)
    answer["recommendation"]["reason"] = words.reason(answer)
    print(json.dumps(answer, indent=2) if options.json else words.text(answer, folder))


def settings() -> list[str]:
    from dgt.commands.plan import planning

    return ["of the plan:", *(f"  {line}" for line in planning.settings()), "", *choices()]


COMMAND = Command(
    name="plan",
    help="for these weights: which strategy, which graph, how large a step, how many bytes",
    example="dgt plan weights=A topology=ring,grid,tailored budget.degree=8 bandwidth=1.2 latency=50 compute=20",
    run=run,
    settings=settings,
    order=5,
    composes=True,
    computes_alone=True,
)
