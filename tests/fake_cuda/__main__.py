"""`python -m tests.fake_cuda ARGUMENTS`: the `dgt` command on GPUs that are not there; a rank, under a launcher."""

from __future__ import annotations

import sys

from dgt.cli import main
from tests.fake_cuda import device
from tests.fake_cuda.ledger import ledger

if __name__ == "__main__":
    device.install(8)
    main(sys.argv[1:])
    if ledger.faults:
        sys.exit("; ".join(ledger.faults[:5]))
