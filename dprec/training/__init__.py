"""Who drives a private run: Lightning through `Privacy`, or a script of one's own through `private`."""
