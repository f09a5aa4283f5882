"""Being one rank among many: environment, rendezvous, the node itself, agreement, stopping, failures."""
