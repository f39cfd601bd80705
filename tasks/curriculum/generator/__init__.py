"""Problems made from a seed: function templates x bug kinds, in three horizons.

templates -> function -> bug -> checks -> problem, kept on its side of the train / held-out split
"""

from tasks.curriculum.generator.problems import generate
from tasks.curriculum.generator.split import normalise, side_of

__all__ = ["generate", "normalise", "side_of"]
