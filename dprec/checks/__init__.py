"""What is refused before and while a model trains: users who touch each other, ways round the private gradient."""
