"""The text that `dgt plan` prints: a table, a recommendation with its reason, and the next command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dgt.report.tables import table

WIDTH = 40  # of the longest bar
UNITS = ("B", "kB", "MB", "GB", "TB")
ALL_ROWS, MOST_ROWS = 16, 20  # so many rows are all shown; of more the best of each algorithm and graph, at most


def text(found: Mapping[str, Any], written: str | None = None) -> str:
    """The whole text; `written` is the folder of the config, if one was written."""
    rows = shown_rows(found["rows"])
    lines = [table([*(_shown(row, found) for row in rows), _shown_ddp(found)]), ""]
    if len(rows) < len(found["rows"]):
        hidden = len(found["rows"]) - len(rows)
        lines += [f"{hidden} more candidates with --json; above is the best of each algorithm on each graph", ""]
    lines += [f"left out: {name} ({why})" for name, why in found["left_out"].items()]
    lines += [*_strategies(found), "", reason(found)]
    lines += [*_step_words(found), *_assumptions(found), ""]
    if "trials" in found:
        lines += [*curve(found), ""]
    lines += ["dgt train " + shlex.join(found["overrides"])]
    if written is not None:
        lines += [f"dgt train --config-dir {shlex.quote(written)} experiment=plan"]
    else:
        lines += ["", "the same as a file, FOLDER/experiment/plan.yaml (write=FOLDER writes it):"]
        lines += [f"  {line}" for line in found["fragment"].splitlines()]
    return "\n".join(lines)


def shown_rows(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """All of them if they are few, else the first, and so the best, of each algorithm on each graph."""
    if len(rows) <= ALL_ROWS:
        return list(rows)
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        best.setdefault((row["algorithm"], row["topology"]), row)
    return list(best.values())[:MOST_ROWS]


def curve(found: Mapping[str, Any]) -> Iterator[str]:
    """The trials of lr=find: lr, loss, and a bar that is longer the lower the loss is."""
    for steps in sorted({trial["steps"] for trial in found["trials"]}):
        trials = sorted((one for one in found["trials"] if one["steps"] == steps), key=lambda one: float(one["lr"]))
        finite = [trial["loss"] for trial in trials if trial["loss"] is not None]
        low, high = min(finite, default=0.0), finite[0] if finite else 0.0
        yield f"{'lr':>10}  {'loss':>8}   after {steps} iterations"
        for trial in trials:
            loss = trial["loss"]
            share = 0.0 if loss is None or high == low else max(0.0, (high - loss) / (high - low))
            shown = "diverges" if loss is None else f"{loss:>8.4g}   {'#' * round(WIDTH * share)}"
            yield f"{trial['lr']:>10.3g}  {shown}".rstrip()


def reason(found: Mapping[str, Any]) -> str:
    """One sentence: what is recommended, and why."""
    best, chosen = found["rows"][0], found["recommendation"]
    name = "Either strategy" if chosen["either"] else f"Strategy {chosen['strategy']}"
    if found["ranked_by"] == "time" and best["seconds"] is not None:
        steps = f"{best['iterations']} iterations of {duration(best['iteration_seconds'])}"
        why = (
            f"brings gradient norm and consensus error to {found['accuracy']:.0%} of their start sooner than other "
            f"candidates, in {duration(best['seconds'])} ({steps}){_against_ddp(found)}"
        )
    elif best["rounding"]:
        rate = f"contraction {best['contraction']:.3f}"
        why = f"comes down to rounding within {found['iterations']} iterations, and soonest ({rate})"
    else:
        why = f"has the lowest predicted gradient norm, {best['error']:.3g} after {found['iterations']} iterations"
    comparable = [row for row in found["rows"][1:] if all(row[key] == best[key] for key in ("reduced", "exact"))]
    cheaper = [row for row in comparable if row["stable"] and row["error"] < best["error"]]
    if cheaper and found["ranked_by"] == "error" and not best["rounding"]:
        why = (
            f"has a predicted gradient norm of {best['error']:.3g} after {found['iterations']} iterations, "
            f"within 1 % of the lowest, and of those its nodes agree soonest (contraction {best['contraction']:.3f})"
        )
    return f"{name} on {_place(chosen)}: {why}{_against(found)}."


def _place(chosen: Mapping[str, Any]) -> str:
    """Graph and algorithm, and how vectors travel where that is not as usual."""
    words = [chosen["topology"], chosen["algorithm"]]
    words += [f"wire={chosen['wire']}"] * (chosen["wire"] != "full")
    words += [f"local_steps={chosen['local_steps']}"] * (chosen["local_steps"] != 1)
    return ", ".join(words)


def _against_ddp(found: Mapping[str, Any]) -> str:
    """How long DDP would take to the same gradient norm."""
    ddp, best = found["ddp"], found["rows"][0]
    if ddp["seconds"] is None:
        return f"; DDP does not get there in {found['iterations']} iterations"
    there = f"{duration(ddp['seconds'])} ({ddp['iterations']} iterations of {duration(ddp['iteration_seconds'])})"
    return f"; DDP would take {there}" + ", and is the quicker one here" * (ddp["seconds"] < best["seconds"])


def _against(found: Mapping[str, Any]) -> str:
    """By how much the other strategy is worse, all else being the same."""
    if found["uniform"]:
        return "; with equal weights both strategies are the same algorithm"
    best = found["rows"][0]
    choice = next((each for each in found["choices"] if _is_same(each, best)), None)
    if choice is None:
        return ""
    if choice["either"]:
        return "; the strategies differ by no more than chance there"
    if choice["strategy"] == found["recommendation"]["strategy"]:
        loser = "I" if choice["strategy"] == "II" else "II"
        other = next(row for row in found["rows"] if row["strategy"] == loser and _is_same(row, best))
        if not other["stable"]:
            return f"; Strategy {loser} diverges there"
        if best["seconds"] is not None and other["seconds"] != best["seconds"]:
            if other["seconds"] is None:
                return f"; Strategy {loser} does not get there in {found['iterations']} iterations"
            later = f", and ends {-choice['advantage']:.0%} lower" if choice["advantage"] < -0.01 else ""
            return f"; Strategy {loser} takes {duration(other['seconds'])} there{later}"
        if other["rounding"]:
            return f"; Strategy {loser} takes longer there"
        if other["reduced"] and not best["reduced"]:
            return f"; Strategy {loser} needs a smaller step there"
        return f"; its error is {choice['advantage']:.0%} below that of Strategy {loser} there"
    return ""


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether they differ in the strategy only."""
    return all(one[key] == other[key] for key in ("topology", "algorithm", "wire", "local_steps"))


def _strategies(found: Mapping[str, Any]) -> list[str]:
    """A line per algorithm: the strategy on every graph."""
    lines: dict[str, dict[str, str]] = {}
    for choice in found["choices"]:
        on = lines.setdefault(choice["algorithm"], {})
        on.setdefault(choice["topology"], "either" if choice["either"] else choice["strategy"])
    if not lines:
        return ["strategy: as given"]
    return [
        f"strategy by graph, {algorithm}: {', '.join(f'{graph} {name}' for graph, name in on.items())}"
        for algorithm, on in lines.items()
    ]


def _step_words(found: Mapping[str, Any]) -> list[str]:
    best, chosen = found["rows"][0], found["recommendation"]
    lines = []
    if any(row["reduced"] for row in found["rows"]):
        lines += [
            "Where the usual step is more than half of what is stable, half of what is stable is taken (column lr): "
            "among errors such rows come after the others."
        ]
    if not all(row["exact"] for row in found["rows"]):
        lines += ["dsgd does not settle at the optimum, which shows in its consensus: among errors it comes last."]
    if found["problem"] != "least_squares":
        return lines  # the predicted limits hold for least squares only
    proved = "" if best["lr_proved"] is None else f"; proved up to {best['lr_proved']:.2g}"
    limits = f"up to {best['lr_stable']:.3g}{proved}"
    words = f"Step size: lr={found['lr']:g} is stable ({limits})"
    if chosen["best_lr"] is not None and chosen["best_lr_error"] < 0.95 * best["error"] and not best["rounding"]:
        words += f"; lr={chosen['best_lr']:.2g} would end at {chosen['best_lr_error']:.3g}"
    return [*lines, words + "."]


def _assumptions(found: Mapping[str, Any]) -> list[str]:
    lines = []
    differ = (c for c in found["choices"] if c["without_noise"] not in (c["strategy"], None))
    sooner = list(
        dict.fromkeys(c["topology"] for c in differ if c["algorithm"] == found["recommendation"]["algorithm"])
    )
    if sooner and found["noise"] and not found["uniform"]:
        lines += [f"Without gradient noise the other strategy would converge faster in the end on {', '.join(sooner)}."]
    if found["problem"] != "least_squares":
        with_momentum = f" and momentum {found['momentum']:g}" if found["momentum"] else ""
        stands_in = " with ".join(filter(None, (found["problem"], found["optimizer"])))
        step = f"at a constant lr={found['lr']:.2g}{with_momentum}"
        lines += [f"Convergence is that of least squares {step}, standing in for {stands_in}."]
    if any(row["wire"] != "full" for row in found["rows"]):
        but = ", 0.02 with int4 and Strategy I" * any(row["wire"] == "int4" for row in found["rows"])
        lines += [f"A narrow wire is taken to leave the gradient norm as it is (measured: within 0.001{but})."]
    if found["bandwidth"] is not None:
        lines += [
            f"Time: {found['bandwidth']:.3g} GB/s per node, {found['latency']:.3g} us per message, "
            f"{found['compute']:g} ms per gradient; DDP is a ring all-reduce that travels during the gradient."
        ]
    else:
        lines += ["bandwidth=GB/s latency=us compute=ms, or measure=true, ranks by time."]
    return lines


def _shown(row: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, str]:
    shown = {"strategy": row["strategy"], "algorithm": row["algorithm"], "topology": row["topology"]}
    shown |= {title: f"{row[key]:g}" if key == "lr" else str(row[key]) for title, key in _varied(found).items()}
    shown |= {
        "gradient norm": "diverges" if not row["stable"] else "rounding" if row["rounding"] else f"{row['error']:.4g}",
        "consensus": f"{row['consensus']:.2g}" if row["stable"] else "",
        "iterations": "" if row["iterations"] is None or not row["stable"] else str(row["iterations"]),
        "gap": f"{row['gap']:.3g}",
        "contraction": f"{row['contraction']:.5f}" if row["contraction"] is not None else "",
        "stable lr": f"{row['lr_stable']:.3g}",
        "proved lr": "" if row["lr_proved"] is None else f"{row['lr_proved']:.2g}",
        "degree": str(row["degree"]) if row["partners"] == row["degree"] else f"{row['partners']} of {row['degree']}",
        "sent": size(row["bytes"]),
    }
    if found["bandwidth"] is not None:
        shown["iteration"] = duration(row["iteration_seconds"])
        shown["time"] = "" if row["seconds"] is None or not row["stable"] else duration(row["seconds"])
    return shown


def _varied(found: Mapping[str, Any]) -> dict[str, str]:
    """Columns that are shown where they differ, and where they come from."""
    columns = {"wire": "wire", "local steps": "local_steps", "lr": "lr"}
    return {title: key for title, key in columns.items() if len({row[key] for row in found["rows"]}) > 1}


def _shown_ddp(found: Mapping[str, Any]) -> dict[str, str]:
    """What centralised SGD would do, as a last row."""
    ddp = found["ddp"]
    shown = {
        "algorithm": "DDP",
        "topology": "all-reduce",
        "gradient norm": "diverges" if ddp["error"] is None else f"{ddp['error']:.4g}",
        "iterations": "" if ddp["iterations"] is None else str(ddp["iterations"]),
        "stable lr": f"{ddp['lr_stable']:.3g}",
        "sent": size(ddp["bytes"]),
    }
    if found["bandwidth"] is not None:
        shown["iteration"] = duration(ddp["iteration_seconds"])
        shown["time"] = "" if ddp["seconds"] is None else duration(ddp["seconds"])
    return shown | ({"lr": f"{ddp['lr']:g}"} if "lr" in _varied(found) else {})


def size(count: float) -> str:
    for unit in UNITS:
        if count < 1000 or unit == UNITS[-1]:
            break
        count /= 1000
    return f"{count:.3g} {unit}"


def duration(seconds: float) -> str:
    for factor, unit in ((1e6, "us"), (1e3, "ms"), (1.0, "s")):
        if seconds * factor < 1000 or unit == "s":
            break
    return f"{seconds * factor:.3g} {unit}" if seconds < 6000 else f"{seconds / 3600:.3g} h"
