"""What models know of items: tables, counts and pairs, shares, spectral vectors, sampled negatives."""
