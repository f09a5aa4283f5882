"""What a user chooses: the dataclasses of a run (`schema`), made from overrides by Hydra (`compose`), and back."""

from dgt.config.schema import (
    ALGORITHMS,
    STRATEGIES,
    TOPOLOGIES,
    TRANSPORTS,
    WIRES,
    CheckpointConfig,
    Cifar10Config,
    Config,
    CustomConfig,
    LeastSquaresConfig,
    StrategyConfig,
    TextConfig,
    TopologyConfig,
    WeightsConfig,
)

__all__ = [
    "ALGORITHMS",
    "STRATEGIES",
    "TOPOLOGIES",
    "TRANSPORTS",
    "WIRES",
    "CheckpointConfig",
    "Cifar10Config",
    "Config",
    "CustomConfig",
    "LeastSquaresConfig",
    "StrategyConfig",
    "TextConfig",
    "TopologyConfig",
    "WeightsConfig",
]
