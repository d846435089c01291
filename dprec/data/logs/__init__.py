"""From a log to its events: parts, ids, times and their order, histories in memory or in mapped files."""
