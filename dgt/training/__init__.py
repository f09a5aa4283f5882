"""The loop, the metrics of the whole network, and the files of a run."""
