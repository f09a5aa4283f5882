import dgt


def round_robin(n: int) -> dgt.schedules.Schedule:
    """Every node meets every other one in n steps: at step t those whose numbers add up to t, modulo n."""

    def pairs(step: int) -> list[tuple[int, int]]:
        return [(i, (step - i) % n) for i in range(n) if i < (step - i) % n]

    return dgt.schedules.from_function(n, pairs, period=n)
