"""How good a variant is: measured on samples, held against budgets, turned into tolerances."""
