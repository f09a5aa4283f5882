"""What the algorithms share: torch's optimizer interface, and the exchange with neighbours in buckets.

optimizer.py     the interface of `torch.optim.Optimizer`, flat parameters, state_dict
neighbours.py    an optimizer that exchanges vectors with its neighbours: overlap, wire, local_steps, bucket_mb
bucket.py        one stretch of the parameters, its messages in streams
small_bucket.py  a small model whole, all its vectors in one message, in numpy
backward.py      hooks on a model that start a bucket's exchange during backward
groups.py        settings of parameter groups, the same on all nodes at every step
scaling.py       gradients that a GradScaler has scaled
"""

from dgt.algorithms.machinery.bucket import Message, Views
from dgt.algorithms.machinery.neighbours import NeighbourOptimizer
from dgt.algorithms.machinery.optimizer import DecentralizedOptimizer

__all__ = ["DecentralizedOptimizer", "Message", "NeighbourOptimizer", "Views"]
