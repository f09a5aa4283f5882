"""`dgt doctor gpu`: every algorithm, graph and wire on this host's GPUs, compared with the twin, into a file.

job.py       what every rank runs, and what rank 0 notes
runs.py      runs of `dgt train` on least squares, compared with `dgt simulate` number by number
loops.py     training loops of one's own, compared with the same loop in main memory
measured.py  host synchronisations and bytes of a step
"""
