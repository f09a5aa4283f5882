"""Starting ranks: on this host from a forkserver, under torchrun or srun, as jobs of a Slurm sweep."""
