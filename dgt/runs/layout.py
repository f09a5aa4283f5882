"""Every name in a run directory, once: whoever writes or reads one of these files takes its name from here.

    Path(config.run_dir) / layout.METRICS

What a checkpoint is made of is in `runs/folders.py` and `training/checkpoints/`; `docs/run_directory.md` explains the
files to those who read them.
"""

from __future__ import annotations

from dgt.processes.failures import FOLDER

CONFIG = "config.yaml"  # what was asked for
ENVIRONMENT = "environment.json"  # versions, hosts and devices
NETWORK = "network.json"  # weights, degrees, edges and mixing rows; a further entry where nodes were lost
METRICS = "metrics.jsonl"  # the network's metrics, a line per evaluation: the source of truth
NODES = "nodes.jsonl"  # those of every node
SUPERSEDED = "metrics.superseded.jsonl"  # lines of `METRICS` that were measured anew after a resume
EVENTS = "events.jsonl"  # nodes that were lost, returns, a stop that was asked for
SUMMARY = "summary.json"  # at the end
COMPARISON = "compare.csv"  # dgt compare
BENCH = "bench.json"  # dgt bench
MODEL = "model.pt"  # the network average at the end; in every checkpoint that of its iteration
BEST = "best.pt"  # the network average at the best evaluation so far, with checkpoint.best
FAILED = "failed.txt"  # why a run of a Slurm sweep failed

CHECKPOINTS = "checkpoints"
FIGURES = "figures"
EXPORTS = "exports"  # dgt export, if no other place is named
FAILURES = FOLDER  # what ranks that failed have noted; `processes/failures.py` writes it
TENSORBOARD, WANDB, MLFLOW = "tensorboard", "wandb", "mlflow"  # what these sinks write

CHECKPOINTED = ".checkpointed"  # marker: this run has had a checkpoint
CHAOS_STRUCK = "chaos-struck"  # marker: the fault of `chaos=` has happened
ASKED = "asked"  # requests to a run under way; `runs/requests.py` knows them
LOCK_PREFIX = ".lock-"  # followed by a token: who holds the directory
PROBE_PREFIX = ".writable-"  # followed by a token: made and removed to see whether one may write

PAGE, TABLE_CSV, TABLE_TEXT = "report.html", "table.csv", "table.md"  # dgt report

RESULTS = (METRICS, COMPARISON, BENCH)  # one of these makes a directory a finished run
OF_A_RUN = (METRICS, SUMMARY, NODES, NETWORK, FAILURES)  # any of these, and `dgt report` takes it for one
NOT_RUNS = (CHECKPOINTS, FIGURES, EXPORTS, TENSORBOARD, WANDB, MLFLOW, FAILURES, ASKED)  # folders without further runs
WRITTEN = (METRICS, NODES, NETWORK, ENVIRONMENT, CONFIG)  # the last change of these tells whether a run goes on
