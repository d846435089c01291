"""The command line: arguments, recipes, and one line for every mistake."""
