"""What an iteration costs: gradient tracking beside plain compute, DDP and a naive exchange, on the same ranks."""
