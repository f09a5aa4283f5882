"""The result of runs in a sentence or two: which is lower, by how much, and whether that exceeds the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dgt.report.groups import Group, choices, curve, differing, grouped
from dgt.runs.measures import ACCURACY, Measure, apart, main
from dgt.runs.run import FAILED, FINISHED, GOING_ON, LABEL, STOPPED, Run, is_number, problems_of


@dataclass(frozen=True, slots=True)
class Verdict:
    """`headline` is the result, `details` what was compared and how reliable it is."""

    headline: str
    details: list[str]


@dataclass(frozen=True, slots=True)
class Standing:
    """One group's result: the late mean of every seed."""

    name: str
    weights_topology: tuple[str, str]
    strategy: str
    others: dict[str, str]  # all other settings
    by_seed: dict[str, float]
    late: list[float]  # the values of the first seed

    @property
    def seeds(self) -> list[float]:
        return list(self.by_seed.values())

    @property
    def mean(self) -> float:
        return float(np.mean(self.seeds))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; of a single seed, that of its values in the last iterations."""
        return float(np.std(self.seeds, ddof=1)) if len(self.seeds) > 1 else float(np.std(self.late))

    def is_same(self, other: Standing) -> bool:
        """Whether the means differ only by rounding, as for both strategies with equal weights."""
        return bool(np.isclose(self.mean, other.mean, rtol=1e-9, atol=0))

    def is_noise(self, other: Standing) -> bool:
        """Whether the difference is below the spread; two runs of the same seed are compared seed by seed."""
        noise = max(self.spread, other.spread)
        alone = len(self.seeds) == 1 and self.by_seed.keys() == other.by_seed.keys()
        if alone and len(self.late) == len(other.late):
            noise = float(np.std(np.subtract(self.late, other.late)))
        return abs(self.mean - other.mean) < noise


def verdict(runs: Sequence[Run]) -> Verdict:
    """For one run how it ended; for several which is best."""
    return _of_one(runs[0]) if len(runs) == 1 else _of_several(runs)


def fate(run: Run) -> str:
    """How far the run got, in a sentence; the page shows the reason of a failure beside it."""
    last = run.records[-1]["iteration"] if run.records else 0
    of = f"{last} of {run.iterations}" if run.iterations and run.state != FINISHED else f"{last}"
    if run.state == FINISHED:
        return f"finished after {last} iterations" if run.records else "finished, but its measurements are not here"
    if run.state == FAILED:
        return f"failed; last measured at iteration {of}"
    if run.state == STOPPED:
        return f"was stopped at iteration {of} and can be resumed"
    if run.state == GOING_ON:
        return f"is going on, at iteration {of}"
    return f"did not finish: last seen at iteration {of}, and no rank left a reason"


def _of_one(run: Run) -> Verdict:
    measure = main(run.metrics)
    points = run.curve(measure.metric)
    headline, details = f"{title(run)} {fate(run)}.", []
    measured = [record["iteration"] for record in run.records if is_number(record.get(measure.metric))]
    lost = [at for at in measured if not points or at > points[-1][0]]
    if lost:
        headline = f"{title(run)} {fate(run)}; {measure.label} is no finite number from iteration {lost[0]} on."
    elif len(points) > 1:
        late = np.mean([value for at, value in points if at >= measure.late * points[-1][0]])
        if run.state == FINISHED:
            headline = f"{title(run)}: {measure.label} {late:.4g} after {run.records[-1]['iteration']} iterations."
        start = f"it was {points[0][1]:.4g} at iteration {points[0][0]}"
        details.append(f"{capital(measure.label)} {late:.4g} is the mean of the {measure.late_words}; {start}.")
    accuracy = run.curve(ACCURACY.metric)
    if accuracy:
        details.append(f"Test accuracy at the end: {accuracy[-1][1]:.1%}, the lambda-weighted mean over all nodes.")
    size = run.network.get("size", run.summary.get("nodes"))
    if size:
        of = f"of {len(run.networks[0]['nodes'])} " if len(run.networks) > 1 else ""  # nodes were lost
        what = ", ".join(run.choice(key).replace("_", " ") for key in ("problem", "algorithm"))
        details.append(f"{size} {of}nodes, {what}, a single seed: other seeds give other values.")
    return Verdict(headline, details)


def title(run: Run) -> str:
    """'Strategy II on exponential with weights A'."""
    if run.choice("strategy") == "?" and run.choice("topology") == "?":
        return run.name
    return f"Strategy {run.choice('strategy')} on {run.choice('topology')} with weights {run.choice('weights')}"


def _of_several(runs: Sequence[Run]) -> Verdict:
    problems = problems_of(run for run in runs if run.records)
    states = [f"{run.label} ({run.name}) {fate(run)}." for run in runs if run.state != FINISHED]
    if len(problems) > 1:
        words = f"{len(runs)} runs of different problems ({', '.join(problems)}): their values cannot be compared."
        return Verdict(words, ["Each curve is shown for itself; no run is called better than another.", *states])
    groups = [group for group in grouped(runs) if group.is_finished]
    measure = main({name for group in groups for name in group.metrics})
    objectives: dict[str, list[Standing]] = {}
    for group, name in zip(groups, names_of(groups), strict=True):
        standing = _standing(group, name, measure)
        if standing is not None:
            objectives.setdefault(objective(group.runs[0]), []).append(standing)
    if not objectives:
        return Verdict(f"{len(runs)} runs, none of them finished: too early for a verdict.", states)
    if len(objectives) == 1:
        (found,) = objectives.values()
        pairs = _pairs(found)
        if pairs:
            best = [_headline(found, measure)] * (len(pairs) > 1)
            return Verdict(_of_strategies(pairs, measure), [*best, _how(found, measure), *states])
        return Verdict(_headline(found, measure), [_how(found, measure), *states])
    headline = f"{len(runs)} runs of {len(objectives)} different objectives: each is compared with its like only."
    bests = [_headline(found, measure) for found in objectives.values()]
    everywhere = [_pairs(found) for found in objectives.values()]
    if all(everywhere):
        headline = _on_all([pair for pairs in everywhere for pair in pairs], len(objectives), measure)
    return Verdict(headline, [*bests, *states])


def objective(run: Run) -> str:
    """The settings that determine the minimised function: problem, node weights, and lost nodes."""
    settings = sorted(choices(run).items())
    kept = [f"{key}={value}" for key, value in settings if key.split(".")[0] in ("problem", "weights", "nodes")]
    return " ".join([*kept, *(str(network["nodes"]) for network in run.networks[1:])])


def names_of(groups: Sequence[Group]) -> list[str]:
    """'A ring II', and in which other settings the groups differ."""
    more = [key for key in differing([choices(group.runs[0]) for group in groups]) if key not in LABEL]
    return [
        ", ".join([group.runs[0].label, *(f"{key} {choices(group.runs[0]).get(key, '-')}" for key in more)])
        for group in groups
    ]


def _standing(group: Group, name: str, measure: Measure) -> Standing | None:
    found = curve(group, measure.metric)
    if found is None:
        return None
    seeds = found.late(measure.late)
    late = found.values[found.iterations >= measure.late * found.iterations[-1]]
    if not np.isfinite(seeds).all():
        return None
    run = group.runs[0]
    cell = (run.choice("weights"), run.choice("topology"))
    others = {key: value for key, value in choices(run).items() if key.split(".")[0] != "strategy"}
    by_seed = dict(zip((one.choice("seed") for one in group.runs), seeds.tolist(), strict=True))
    return Standing(name, cell, run.choice("strategy"), others, by_seed, late[:, 0].tolist())


def _headline(found: Sequence[Standing], measure: Measure) -> str:
    ranked = sorted(found, key=lambda one: one.mean, reverse=measure.higher_is_better)
    best = ranked[0]
    if len(found) == 1:
        over = f" ± {best.spread:.2g} over {len(best.seeds)} seeds" if len(best.seeds) > 1 else ""
        return f"{best.name}: {measure.label} {best.mean:.4g}{over}."
    second = ranked[1]
    if best.is_same(second):
        return f"{best.name} and {second.name} have the same {measure.label}, {best.mean:.4g}."
    share = apart(best.mean, second.mean)
    share = "less than 0.1%" if share == "0.0%" else share
    word, side = ("highest", "above") if measure.higher_is_better else ("lowest", "below")
    if best.is_noise(second):
        lead = f"{best.name} has the {word} {measure.label}, {best.mean:.4g}, but its lead of {share}"
        return f"{lead} over {second.name} is within the noise."
    return f"{best.name} has the {word} {measure.label}, {best.mean:.4g}: {share} {side} {second.name}."


def _how(found: Sequence[Standing], measure: Measure) -> str:
    """What was compared, and how reliable the result is."""
    least = min(len(one.seeds) for one in found)
    noise = (
        f"noise is the spread over {least} seeds"
        if least > 1
        else "one seed each, so noise is how much the difference scatters within a run; dgt compare runs several seeds"
    )
    return f"Compared by the mean of the {measure.late_words} of the iterations; {noise}."


Pair = tuple[Standing, Standing]  # Strategy I and Strategy II on the same network


def _pairs(found: Sequence[Standing]) -> list[Pair]:
    """(I, II) for every network, if the groups are exactly these pairs and differ in nothing else."""
    cells: dict[tuple[str, str], dict[str, Standing]] = {}
    for one in found:
        cells.setdefault(one.weights_topology, {})[one.strategy] = one
    complete = all(set(both) == {"I", "II"} for both in cells.values()) and len(found) == 2 * len(cells)
    pairs = [(both["I"], both["II"]) for both in cells.values()] if complete else []
    return pairs if all(one.others == two.others for one, two in pairs) else []


def _of_strategies(pairs: Sequence[Pair], measure: Measure) -> str:
    """For each network by how much, and in how many seeds, II is lower, or whether one run is too little to say."""
    changes = []
    for one, two in pairs:
        change = two.mean - one.mean
        if one.is_same(two):
            changes.append((0.0, f"the same on {one.weights_topology[1]}"))
            continue
        common = [seed for seed in one.by_seed if seed in two.by_seed]
        if len(common) > 1:
            lower = sum((two.by_seed[seed] - one.by_seed[seed]) * change > 0 for seed in common)
            trust = f"in {lower} of {len(common)} seeds"
        else:
            trust = "within the noise" if two.is_noise(one) else "more than noise"
        changes.append((change, f"{apart(two.mean, one.mean)} on {one.weights_topology[1]} ({trust})"))
    if all(change < 0 for change, _ in changes):
        parts = ", ".join(f"by {words}" for _, words in changes)
        return f"Strategy II has a lower {measure.label} than Strategy I: {parts}."
    parts = ", ".join(f"{'−' if change < 0 else '+' * (change > 0)}{words}" for change, words in changes)
    return f"Strategy II against Strategy I in {measure.label}: {parts}."


def _on_all(pairs: Sequence[Pair], objectives: int, measure: Measure) -> str:
    """In how many networks one strategy is lower and by how much, also across different objectives."""
    lower = [(one, two) for one, two in pairs if two.mean < one.mean and not one.is_same(two)]
    how_many = f"all {len(pairs)}" if len(lower) == len(pairs) else f"{len(lower)} of {len(pairs)}"
    lower.sort(key=lambda pair: (pair[0].mean - pair[1].mean) / (abs(pair[0].mean) or 1))
    shares = list(dict.fromkeys(apart(two.mean, one.mean) for one, two in lower))
    by = ", by " + " to ".join([shares[0], *shares[1:][-1:]]) if shares else ""
    what = f"Strategy II has a lower {measure.label} than Strategy I on {how_many} networks{by}"
    return f"{what}; {objectives} different objectives, each compared with its like only."


def capital(words: str) -> str:
    return words[:1].upper() + words[1:]
