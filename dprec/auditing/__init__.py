"""Does a trained model keep what its guarantee promises? Planted users, and what can be told of them afterwards."""
