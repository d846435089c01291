"""A run, or several beside each other, as one page of HTML: no script, no file and no address from elsewhere."""
