"""Click records: Criteo's form and named columns, one by one or by person, and generated ones."""
