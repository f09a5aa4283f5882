"""Weights, graphs and mixing matrices: the mathematics of the network, without sockets."""
