"""Sessions that a clock wakes: jobs, their slots and their runs."""
