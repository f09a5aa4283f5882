"""Data sets, their partition over the nodes, and the order in which a node sees its samples."""
