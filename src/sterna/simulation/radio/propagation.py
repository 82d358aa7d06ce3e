"""How strong a signal arrives, and whether its frame does: path loss with frozen shadowing, bit errors by SINR.

The constants are Castalia's for a CC2420 at 0 dBm.  The area is divided into cells of 5 m.  The loss between two cells
is drawn once and stays for the whole run: whoever is in the same two cells hears the same.  The two directions differ a
little.  Within a cell the loss is that of 1 m.  There is no fading over time.
"""

from __future__ import annotations

from math import ceil, erfc, sqrt
from random import Random

import numpy as np
from numpy.typing import NDArray

TRANSMITTED_DBM = 0.0
LOSS_AT_1_M_DB = 55.0
EXPONENT = 2.4
SHADOWING_DB = 4.0
DIRECTIONS_DB = 1.0
"""How much the two directions of a pair differ."""
SIGNAL_MIN_DBM = -100.0
"""A weaker signal reaches nobody, not even as interference."""
SENSITIVITY_DBM = -95.0
NOISE_DBM = -100.0
NOISE_MW = 10 ** (NOISE_DBM / 10)
BITS_PER_S = 250_000
NOISE_BANDWIDTH_KHZ = 194
CELL_M = 5.0
_CERTAIN_DB = 14.0
"""From this ratio on less than one bit in ten million is wrong."""


def path_loss(metres: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """In dB, without shadowing."""
    loss: NDArray[np.float64] = LOSS_AT_1_M_DB + 10 * EXPONENT * np.log10(np.maximum(metres, 1.0))
    return loss


def survival(ratio_db: float, bits: float) -> float:
    """The probability that none of these bits is wrong at this ratio of signal to noise and interference."""
    if ratio_db >= _CERTAIN_DB:
        return 1.0
    error = 0.5 * erfc(sqrt(10 ** (ratio_db / 10) * NOISE_BANDWIDTH_KHZ * 1000 / BITS_PER_S))
    return float((1 - error) ** bits)


class Propagation:
    """The cells of a square, and how strong a signal from one arrives in another."""

    def __init__(self, side_m: float, rng: Random, shadowing_db: float = SHADOWING_DB) -> None:
        self.side_m = side_m
        self.cells_a_side = ceil(side_m / CELL_M)
        places = np.arange(self.cells_a_side) * CELL_M + CELL_M / 2
        x, y = (axis.ravel() for axis in np.meshgrid(places, places, indexing="ij"))
        distance = np.hypot(x[:, None] - x[None, :], y[:, None] - y[None, :])
        dice = np.random.Generator(np.random.PCG64(rng.getrandbits(64)))
        pair = np.triu(dice.normal(0.0, 1.0, distance.shape) * shadowing_db, 1)
        way = np.triu(dice.normal(0.0, DIRECTIONS_DB, distance.shape) / 2, 1) if shadowing_db else np.zeros_like(pair)
        self.dbm: NDArray[np.float64] = TRANSMITTED_DBM - path_loss(distance) - (pair + pair.T) - (way - way.T)
        self._dbm_rows: list[list[float] | None] = [None] * len(x)
        self._mw_rows: list[list[float] | None] = [None] * len(x)

    def cells_of(self, positions: NDArray[np.float64]) -> list[int]:
        """The cell of each position."""
        steps = np.minimum((positions / CELL_M).astype(np.int64), self.cells_a_side - 1)
        cells: list[int] = (steps[:, 0] * self.cells_a_side + steps[:, 1]).tolist()
        return cells

    def dbm_from(self, cell: int) -> list[float]:
        """HOT: how strong a sender in this cell is heard, by cell of the receiver."""
        row = self._dbm_rows[cell]
        if row is None:
            row = self._dbm_rows[cell] = self.dbm[cell].tolist()
        return row

    def mw_from(self, cell: int) -> list[float]:
        """HOT: the same in mW, and nothing where the signal does not reach."""
        row = self._mw_rows[cell]
        if row is None:
            heard = self.dbm[cell]
            row = self._mw_rows[cell] = np.where(heard >= SIGNAL_MIN_DBM, 10 ** (heard / 10), 0.0).tolist()
        return row
