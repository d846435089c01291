"""What the measurements share: rows and their files, pictures, and runs that are finished or read again."""
