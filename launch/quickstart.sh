#!/usr/bin/env bash
# From nothing to a figure: both strategies on four topologies, 16 nodes, one process each. About two minutes
# once everything is installed.
#   bash launch/quickstart.sh
source "$(dirname "$0")/setup.sh"
install_dgt
.venv/bin/dgt compare weights=A topology=ring,grid,exponential,tailored "$@"
