"""Comparison of systems at equal budgets and seeds: study files, training, tables."""

from messagenet.studies.run import compare
from messagenet.studies.study import Study, read_study
from messagenet.studies.tables import RunResult, results_table

__all__ = ["RunResult", "Study", "compare", "read_study", "results_table"]
