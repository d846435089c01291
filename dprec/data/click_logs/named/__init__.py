"""Click logs whose columns have names, which a recipe gives: read in any format, kept in memory or in files."""
