"""dgt inside other frameworks, one module each: `accelerate`, `transformers`, `lightning` (with Fabric).

Each module imports its framework when it is imported itself, and nothing else of dgt imports these modules. They keep
three things that such frameworks break otherwise: gradients stay on their node, a node's loader is its own, and what is
evaluated or saved is the network average.
"""
