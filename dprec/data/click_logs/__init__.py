"""Click records: the columns that a recipe names, known logs, and records one by one or by person."""
