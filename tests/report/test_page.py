"""The page in a real browser: what is drawn, what happens on hover and click, that it asks nobody for anything."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dgt.commands.report import pages as command
from dgt.config import Config
from dgt.launching.jobs import JoinOptions
from dgt.launching.launch import start_ranks
from dgt.processes.node import Node
from dgt.report import html
from dgt.report.payload import DRAWN, payload
from dgt.runs.reader import read
from dgt.runs.record import MOST_NODES
from dgt.runs.run import Run
from dgt.training.evaluation import evaluate
from dgt.training.setup import network_of
from tests.distributed.runs import configured, session_of, train
from tests.report import crafted as made_up
from tests.runs.test_reader import crafted

sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.heavy

SETTINGS = ("weights=[3,1,4,2]", "topology=ring", "iterations=40", "eval_every=4", "checkpoint.keep_last=0")


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same four ranks under both strategies."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("I", "II"):
        train(folder / name, *SETTINGS, f"strategy={name}")
    return [folder / "I", folder / "II"]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this host")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])  # root has no sandbox
        yield started
        started.close()


class Window:
    """A page that was opened from a file, and everything it complained about or asked for."""

    def __init__(self, browser: sync_api.Browser, path: Path, width: int) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 800}, has_touch=width < 500)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.trouble: list[str] = []
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url, path))
        self.page.goto(path.as_uri())

    def _asked(self, url: str, path: Path) -> None:
        if url.partition("#")[0] != path.as_uri() and url != "data:,":
            self.trouble.append(f"asked for {url}")

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def colours(self) -> list[str]:
        return list(self.page.eval_on_selector_all("#graph .dot", "dots => dots.map(dot => dot.style.fill)"))

    def slide_to(self, k: int) -> None:
        self.page.eval_on_selector("#at", f"at => {{ at.value = {k}; at.dispatchEvent(new Event('input')); }}")


@pytest.fixture
def opened(browser: sync_api.Browser, tmp_path: Path) -> Iterator[object]:
    """opened(runs or a file, width): a window; whatever it complained about fails the test at its end."""
    windows = []

    def open_(what: list[Run] | Path, width: int = 1200) -> Window:
        path = what if isinstance(what, Path) else tmp_path / "page.html"
        if not isinstance(what, Path):
            html.write(what, path)
        windows.append(Window(browser, path, width))
        return windows[-1]

    yield open_
    for window in windows:
        window.context.close()
        assert window.trouble == []


def test_a_run_directory_holds_what_the_page_shows(run_dirs: list[Path]) -> None:
    run = read(run_dirs[1])
    assert run.notes == []
    assert [record["iteration"] for record in run.nodes] == [record["iteration"] for record in run.records]
    network, weights = run.network, [3 * 0.4, 0.4, 4 * 0.4, 2 * 0.4]
    assert network["weights"] == pytest.approx(weights)
    assert network["edges"] == [[0, 1], [0, 3], [1, 2], [2, 3]]
    rows = [[row.get(str(j), 0.0) for j in range(4)] for row in network["mixing"]]
    assert [sum(row) for row in rows] == pytest.approx([1] * 4)
    assert [sum(weights[i] * rows[i][j] for i in range(4)) for j in range(4)] == pytest.approx(weights)
    last, metrics = run.nodes[-1], run.records[-1]
    assert sum(w * loss for w, loss in zip(weights, last["loss"], strict=True)) / 4 == pytest.approx(
        metrics["loss"], 1e-4
    )
    squares = sum(w * d * d for w, d in zip(weights, last["from_average"], strict=True)) / 4
    assert squares**0.5 == pytest.approx(metrics["consensus"], rel=1e-4)
    assert all(now >= before for now, before in zip(last["waited"], run.nodes[0]["waited"], strict=True))
    assert max(last["waited"]) > 0
    assert {"dgt", "torch", "python", "hosts", "ranks", "backend", "device"} <= set(run.environment)
    assert (run.environment["ranks"], run.environment["hosts"]) == (4, 1)


@dataclass(frozen=True)
class BothWays:
    """Every node's values of one evaluation, gathered as of a small model and summed as of a large one."""

    config: Config

    def run(self, node: Node) -> list[dict[str, list[float]]] | None:
        weights, graph = network_of(self.config, node.placement)
        session = session_of(self.config, node, weights, graph)
        for iteration in range(5):
            session.step(iteration)
        found = [evaluate(session.problem, session.optimizer, None, most) for most in (1 << 20, 0)]
        return [{name: values.tolist() for name, values in both.nodes.items()} for both in found if both is not None]


def test_large_models_tell_the_same_of_every_node(tmp_path: Path) -> None:
    config = configured(tmp_path / "r", *SETTINGS)
    gathered, summed = start_ranks(BothWays(config), 4, JoinOptions.from_config(config))[0]
    assert set(gathered) == {"loss", "waited", "from_average"}
    assert summed["loss"] == gathered["loss"]
    assert summed["from_average"] == pytest.approx(gathered["from_average"], rel=1e-9)


def test_hover_measure_and_legend(run_dirs: list[Path], opened) -> None:
    window = opened([read(path) for path in run_dirs])
    assert window.text("h1").startswith("Strategy II ")
    assert window.page.locator("#plot .curve").count() == 2
    window.page.hover("#plot", position={"x": 400, "y": 200})
    tip = window.text(".tip")
    assert "iteration" in tip
    at = int(tip.split()[1])
    for path in run_dirs:
        record = next(record for record in read(path).records if record["iteration"] == at)
        assert f"{record['grad_norm']:.4g}" in tip
    shape = window.page.get_attribute("#plot .curve", "d")
    window.page.select_option("#metric", "consensus")
    assert window.page.get_attribute("#plot .curve", "d") != shape
    assert "distance of the nodes from their average" in window.text("#plot")
    window.page.click("#legend button >> nth=0")
    assert window.page.locator("#plot .curve").count() == 1
    window.page.focus("#plot")
    window.page.keyboard.press("ArrowLeft")
    assert "iteration 36" in window.text(".tip")


def test_a_node_shows_its_mixing_row(run_dirs: list[Path], opened) -> None:
    window, network = opened([read(run_dirs[1])]), read(run_dirs[1]).network
    for node in (2, 1):
        window.page.click(f"#graph [data-node='{node}']")
        assert window.text("#row h3") == f"Node {node}"
        shown = window.page.eval_on_selector_all("[data-weight]", "all => all.map(one => Number(one.dataset.weight))")
        assert sorted(shown) == pytest.approx(sorted(network["mixing"][node].values()), abs=1e-9)
        assert f"{network['weights'][node]:.4g}" in window.text("#row .facts")
        assert window.page.locator("#graph line.lit").count() == network["degrees"][node]


def test_the_slider_and_the_measurement_change_the_colours(run_dirs: list[Path], opened) -> None:
    window = opened([read(run_dirs[1])])
    last = window.colours()
    assert len(set(last)) > 1
    window.slide_to(1)
    assert window.text("#at-words") == "4 of 40"
    assert window.colours() != last
    window.page.select_option("#colour", "degree")
    assert len(set(window.colours())) == 1, "a ring"
    assert window.page.locator("#bars [data-metric='waited'] .bar").count() == 4
    window.page.click("#bars [data-metric='waited'] .bar >> nth=1")
    window.page.mouse.move(1, 1)
    waited = read(run_dirs[1]).nodes[1]["waited"][1]
    told = re.search(r"; node 1: (\S+) s\n", window.text("#bars [data-metric='waited']"))
    assert told is not None, "a tap tells what hovering does"
    assert float(told[1]) == pytest.approx(waited, rel=1e-2)


def test_settings_that_differ_and_no_others(run_dirs: list[Path], opened) -> None:
    window = opened([read(path) for path in run_dirs])
    assert window.page.eval_on_selector_all("#differ td.key", "all => all.map(one => one.textContent)") == ["strategy"]
    window.page.click("summary")
    assert "laziness" in window.text("#all")
    assert "gloo" in window.text("#where")


@pytest.mark.parametrize("several", [False, True])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(several: bool, run_dirs: list[Path], opened) -> None:
    runs = [read(path) for path in run_dirs] + made_up.runs(seeds=2)
    window = opened(runs if several else runs[1:2], width=360)
    assert window.page.evaluate("document.documentElement.scrollWidth") <= 360
    window.page.tap("#plot", position={"x": 200, "y": 100})
    assert "iteration" in window.text(".tip")


def test_what_went_wrong_is_told(tmp_path: Path, opened) -> None:
    run_dir = crafted(tmp_path / "</script><b>r", "open")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 9, "lo')
    note = {"rank": 2, "kind": "TrainingError", "reason": "</script><script>x", "code": 1, "time": 5.0, "host": "far"}
    (run_dir / "failures" / "1").mkdir(parents=True)
    (run_dir / "failures" / "1" / "rank-00002.json").write_text(json.dumps(note))
    window = opened([read(run_dir)])
    assert "failed; last measured at iteration 6 of 6" in window.text("h1")
    assert "half-written" in window.text("#notes")
    assert "Rank 2 on far: </script><script>x" in window.text("#happened")


def test_seeds_are_one_line_with_a_band(opened) -> None:
    window = opened(made_up.runs(seeds=3))
    assert window.page.locator("#plot .curve").count() == 4, "two topologies, two strategies"
    window.page.hover("#plot", position={"x": 400, "y": 200})
    assert "(3 seeds)" in window.text(".tip")


def test_a_run_with_nothing_in_it_has_a_page(tmp_path: Path, opened) -> None:
    (tmp_path / "r" / "failures").mkdir(parents=True)
    assert "no metrics.jsonl" in opened([read(tmp_path / "r")]).text("#notes")


def test_a_hundred_thousand_nodes_stay_small_and_quick(tmp_path: Path, opened) -> None:
    run_dir, n = crafted(tmp_path / "r"), 100_000
    names = list(range(0, n, n // MOST_NODES))
    network = {"iteration": 0, "size": n, "nodes": names, "weights": [1.0 + k for k in range(MOST_NODES)]}
    (run_dir / "network.json").write_text(json.dumps([network | {"degrees": [2] * MOST_NODES}]))
    line = {"loss": [float(k) for k in range(MOST_NODES)]}
    with (run_dir / "nodes.jsonl").open("w") as file:
        file.writelines(json.dumps({"iteration": k, **line}) + "\n" for k in range(200))
    run = read(run_dir)
    assert len(html.page([run])) < 3_000_000
    assert any("of 200 evaluations" in note for note in payload([run])["runs"][0]["notes"])
    window = opened([run])
    assert "100,000 nodes are too many to draw" in window.text("#graph-words")
    assert window.page.locator("#graph circle").count() == MOST_NODES > DRAWN


def test_a_page_that_is_followed_picks_up_new_lines_and_stops(tmp_path: Path, opened) -> None:
    run_dir = crafted(tmp_path / "r", "open", iterations=12)
    page = run_dir / "report.html"
    html.write([read(run_dir)], page, live=True)
    window = opened(page)
    window.page.select_option("#metric", "loss")
    following = threading.Thread(target=command.follow, args=([str(run_dir)], None, 0.2), daemon=True)
    following.start()
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 9, "loss": 0.5}\n')
    window.page.wait_for_function("document.getElementById('headline').textContent.includes('9 of 12')")
    # a reload keeps what was chosen
    window.page.wait_for_function("document.getElementById('metric').value === 'loss'")
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 12, "loss": 0.4}\n')
    (run_dir / "summary.json").write_text(json.dumps({"iterations": 12, "final": {"iteration": 12}}))
    window.page.wait_for_function("document.getElementById('state').textContent === 'finished'")
    following.join(timeout=20)
    assert not following.is_alive()
    assert '"live":false' in page.read_text()
