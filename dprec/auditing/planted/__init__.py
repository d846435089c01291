"""What an audit plants: artificial users, canaries of the gradient, and the data that hold them."""
