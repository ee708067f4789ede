"""Gates: evaluation of variants on samples, comparison with budgets, and tolerances for devices."""
