"""The networks around the tables that are measured: that of MLPerf's DLRM, and three of production."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Network:
    """How many tables of which width a DLRM has, and its hidden layers."""

    tables: int
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    pooling: int = 1  # look-ups a feature

    def ids(self, gigabytes: float) -> int:
        """Return the rows of each table, where all together are so large in float32.

        >>> NETWORKS[MLPERF].ids(4.0)
        300481
        """
        return max(2, round(gigabytes * 1e9 / (self.tables * self.dim * 4)))


MLPERF = "MLPerf"
NETWORKS = {
    MLPERF: Network(26, 128, (512, 256), (1024, 1024, 512, 256)),
    "RMC1": Network(10, 32, (256, 128), (256, 64), 80),  # few small tables, many look-ups
    "RMC2": Network(40, 32, (256, 128), (512, 128), 80),  # many tables, many look-ups
    "RMC3": Network(10, 32, (2560, 512), (512, 128), 20),  # most work in its layers
}
