"""Starting ranks: on this host from a warm process, under torchrun, as jobs of a Slurm sweep."""
