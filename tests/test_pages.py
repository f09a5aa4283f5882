"""README and docs/: figures are those of the code, examples those of the files, every command has its test.

That links lead somewhere, and the names in the reference exist, `mkdocs build --strict` checks in launch/test.sh.
"""

from __future__ import annotations

import re
import runpy
import shlex
import textwrap
from pathlib import Path

import pytest

import dgt
from dgt.config.compose import compose
from dgt.exchange import frames, shared
from dgt.models import resnet18
from dgt.network import graphs
from dgt.network.hosts import edges_between
from tests.distributed.test_shown import COMMANDS, PROGRAMS
from tests.pages import EXAMPLES, INLINE, LINES, TEXT, TOP, blocks

SLURM, BENCH, HOSTS = "distributed/test_slurm.py", "distributed/test_bench.py", "distributed/test_hosts.py"
# how a command begins that needs Slurm, root, two hosts, GPUs or a container, and the test nearest to it: the same in
# small, on the CPU in place of GPUs, `dgt doctor` on two hosts by srun; images are only linted (docker/check.sh builds)
RUN_BY = {
    r"bash launch/quickstart.sh$": "distributed/test_shown.py::test_quickstart_prints_a_table_and_a_figure",
    r"(DGT_SEED=7 DGT_SCHEDULES=200 )?bash launch/test.sh": "test_pages.py::test_every_other_command_has_its_test",
    r"source .venv/bin/activate$|cd docs/examples$": "distributed/test_shown.py::test_every_example_trains",
    r"torchrun --nproc-per-node 16 -m dgt train": (
        "distributed/test_commands.py::test_torchrun_and_dgt_write_identical_metrics"
    ),
    r"torchrun .*--max-restarts": "distributed/test_faults.py::test_torchrun_restarts_work_the_first_time",
    r"(torchrun|srun) .* dgt bench": f"{BENCH}::test_bench_under_torchrun",
    r"torchrun --nnodes .* dgt train": f"{HOSTS}::test_two_hosts_and_a_link_that_comes_back",
    r"dgt doctor gpu|torchrun .* dgt doctor gpu": (
        "distributed/test_gpus.py::test_half_of_the_cases_have_the_numbers_of_the_twin_on_four_gpus"
    ),
    r"srun .*dgt train|(srun|torchrun) .* dgt doctor": f"{SLURM}::test_shells_start_ranks_and_srun_tasks_are_ranks",
    r"sbatch launch/slurm": f"{SLURM}::test_batch_files_stop_at_the_warning_and_go_on",
    r"sbatch --array": f"{SLURM}::test_an_array_is_a_sweep",
    r"dgt train -m hydra/launcher=slurm": "distributed/test_sweeps.py::test_a_sweep_of_jobs_is_the_local_sweep",
    r"sudo dgt bench preset=links": f"{BENCH}::test_hosts_on_slow_links",
    r"python docs/examples/adam_forms": "reference/test_adam_forms.py::test_every_form_trains_the_transformer",
    r"python docs/examples/cheaper_figures": "reference/test_cheaper_figures.py::test_tables_and_figure_of_the_page",
    r"dgt run -n 4 against_ddp": "distributed/test_shown.py::test_the_example_beside_ddp_trains_both_ways",
    r"sudo sysctl": "distributed/test_ports.py::test_a_firewall_is_named_and_the_documented_ports_suffice",
    r"python load_model.py": "distributed/test_models_of_runs.py::test_the_example_loads_a_model_without_dgt",
    r"dgt (leave|join) ": "distributed/test_leaving.py::test_a_node_leaves_and_joins_on_command",
    r"docker build|apptainer|sudo bash docker/check.sh": "test_docker.py::test_the_dockerfile_lints_clean",
    r"docker run|mkdir -p runs$": "test_docker.py::test_results_go_to_the_volume",
    r"docker compose": "test_docker.py::test_both_hosts_run_the_same_but_for_their_number",
}


def test_the_readme_is_short() -> None:
    assert len(TEXT["README.md"].splitlines()) <= 180


@pytest.mark.parametrize("line", [line for line in LINES if line not in COMMANDS + PROGRAMS])
def test_every_other_command_has_its_test(line: str) -> None:
    tests = [test for begins, test in RUN_BY.items() if re.match(begins, line)]
    assert tests, f"{line}: no test runs this"
    file, name = tests[0].split("::")
    assert f"def {name}" in (TOP / "tests" / file).read_text()


@pytest.mark.parametrize("line", [*INLINE, *(line for line in LINES if " dgt train " in line)])
def test_settings_of_commands_that_are_not_run_exist(line: str) -> None:
    words = [word for word in shlex.split(line[line.index("dgt ") :])[2:] if "=" in word]
    compose([re.sub(r"=([^\[,]+),.*", r"=\1", word) for word in words])  # of several choices the first


def test_every_example_is_run() -> None:
    """By a command that names the file or its module, or by a test."""
    names = " ".join([*COMMANDS, *PROGRAMS, *(file.read_text() for file in (TOP / "tests").rglob("test_*.py"))])
    assert [file.name for file in EXAMPLES.rglob("*.py") if not re.search(rf"\b{file.stem}\.", names)] == []


@pytest.mark.parametrize("page", [name for name, text in TEXT.items() if blocks("python", text)])
def test_python_on_pages_is_that_of_the_examples(page: str) -> None:
    """Word for word, but for how far it is indented: GitHub cannot include files."""
    for block in blocks("python", TEXT[page]):
        assert any(_contains(file.read_text(), block) for file in EXAMPLES.rglob("*.py")), f"{page}:\n{block}"


def _contains(text: str, block: str) -> bool:
    lines, wanted = _lines(text), textwrap.dedent("\n".join(_lines(block))).splitlines()
    parts = (lines[start : start + len(wanted)] for start in range(len(lines) - len(wanted) + 1))
    return any(textwrap.dedent("\n".join(part)).splitlines() == wanted for part in parts)


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", [name for name, text in TEXT.items() if blocks("yaml", text)])
def test_settings_on_pages_are_those_of_the_examples(page: str) -> None:
    files = [file.read_text() for file in EXAMPLES.rglob("*.yaml")]
    assert [block for block in blocks("yaml", TEXT[page]) if block not in files] == []


def test_expected_traffic_is_that_of_the_graphs() -> None:
    page = TEXT["benchmark.md"]
    numbers = sum(parameter.numel() for parameter in resnet18().parameters())
    assert f"{numbers:,} parameters" in page
    model = 4 * numbers / 1e6
    for nodes, name in ((8, "ring"), (8, "exponential"), (16, "ring"), (16, "grid"), (16, "exponential")):
        graph = getattr(graphs, name)(nodes)
        degree = max(dict(graph.degree).values())
        row = f"| {nodes} | {name} | {degree} | {2 * degree * model:.0f} |"
        if nodes == 16:
            across = edges_between(graph, range(nodes), [rank // 8 for rank in range(nodes)])
            megabytes = 2 * across * model
            row += f" {across} | {megabytes:.0f} | {megabytes * 8 / 100:.0f} ms |"
        assert row in page
    for nodes in (8, 16):
        assert f"| {nodes} | DDP | | {2 * (nodes - 1) / nodes * model:.0f} |" in page


@pytest.mark.parametrize("page", [TOP / "CONTRIBUTING.md", TOP / "README.md", *sorted((TOP / "docs").glob("*.md"))])
def test_files_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = [TOP / name for name in re.findall(r"(?:launch|docker|docs|tests)/[\w/]+\.\w+", text)]
    named += [page.parent / link for link in re.findall(r"\]\(([\w/.]+)\)", text)]  # pages, examples, pictures
    assert [name for name in named if not name.exists()] == []


def test_modules_that_the_architecture_names_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)`", TEXT["architecture.md"])
    assert len(named) > 20
    assert [name for name in named if not (TOP / "dgt" / name).exists()] == []


def test_the_wire_format_on_the_page_is_that_of_the_frames() -> None:
    fields = re.findall(r"^\| (\d+) \| (\d+) \| ", TEXT["architecture.md"], flags=re.MULTILINE)
    places = [int(offset) for offset, _ in fields]
    assert places[0] == 0
    assert [sum(int(size) for _, size in fields[:number]) for number in range(len(fields))] == places
    assert places[-1] + int(fields[-1][1]) == frames.HEAD
    assert f"head, {frames.HEAD} bytes" in TEXT["architecture.md"]
    assert f"tail, {frames.TAIL} bytes" in TEXT["architecture.md"]
    for place in (shared.PUBLISHED, shared.BELL, shared.LEFT, shared.SIGNATURES):
        assert re.search(rf"^\| {place} \| ", TEXT["architecture.md"], flags=re.MULTILINE)


def test_every_public_name_is_in_the_reference() -> None:
    page = TEXT["reference.md"]
    assert [
        name for name in dgt.__all__ if f"::: dgt.{name}\n" not in page and not re.search(rf"[\[ ]{name}[,\]]", page)
    ] == []


def test_columns_of_docstrings_are_tables_in_the_reference() -> None:
    pytest.importorskip("griffe")
    as_markdown = runpy.run_path(str(TOP / "docs" / "docstrings.py"))["as_markdown"]
    assert as_markdown("Join.\n\nname    its name,\n        in full\nother   a | b\n\nThen this.") == (
        "Join.\n\n\n| | |\n|---|---|\n| `name` | its name, in full |\n| `other` | a \\| b |\n\n\nThen this."
    )
