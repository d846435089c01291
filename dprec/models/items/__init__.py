"""Items in models: tables, counts and pairs, shares, spectral vectors, sampled negatives."""
