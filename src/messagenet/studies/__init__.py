"""Systems side by side, with equal budgets and seeds, in one table.

outcomes = compare(["unary", "message", "context_crf"], load_config("tiny"), seeds=[0, 1, 2], out="comparisons/scenes")
"""

from messagenet.studies.run import Watcher, compare
from messagenet.studies.systems import ROWS, Row
from messagenet.studies.tables import Line, Outcome, lines, markdown

__all__ = ["ROWS", "Line", "Outcome", "Row", "Watcher", "compare", "lines", "markdown"]
