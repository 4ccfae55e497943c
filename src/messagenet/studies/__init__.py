"""Systems side by side: equal budgets and seeds, one table; studies as files."""

from messagenet.studies.run import compare
from messagenet.studies.study import Study, read_study
from messagenet.studies.tables import RunResult, StudyCallback, results_table

__all__ = ["RunResult", "Study", "StudyCallback", "compare", "read_study", "results_table"]
