#!/usr/bin/env bash
# Everything that is checked: style, types, import direction, and all tests.
#   bash launch/test.sh                      # all of it
#   bash launch/test.sh -m "not heavy"       # arguments go to pytest
source "$(dirname "$0")/setup.sh"
install_dgt test
if ! command -v slurmctld >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Slurm for its tests"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
fi
export OMP_NUM_THREADS=1
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/lint-imports
.venv/bin/python -m pytest "$@"
