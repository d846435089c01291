"""LazyDP's records of its tables: the noise that each row owes, its closed form, and all tables of a GPU at once."""
