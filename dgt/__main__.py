"""`python -m dgt` and `torchrun -m dgt` are the `dgt` command."""

from dgt.cli import main

if __name__ == "__main__":
    main()
