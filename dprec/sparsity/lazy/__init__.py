"""What LazyDP keeps of its tables: which noise each row owes, its closed form, and all tables of a GPU at once."""
