"""Studies of many plans, their tables, figures and reports."""
