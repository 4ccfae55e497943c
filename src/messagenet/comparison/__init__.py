"""Systems side by side, with equal budgets and seeds, in one table.

outcomes = compare(["unary", "message", "context_crf"], load_config("tiny"), seeds=[0, 1, 2], out="comparisons/scenes")
"""

from messagenet.comparison.outcome import Outcome
from messagenet.comparison.rows import ROWS, Row
from messagenet.comparison.run import Watcher, compare
from messagenet.comparison.table import Line, lines, markdown

__all__ = ["ROWS", "Line", "Outcome", "Row", "Watcher", "compare", "lines", "markdown"]
