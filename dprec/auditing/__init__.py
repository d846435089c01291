"""Does a trained model keep its guarantee? Train with planted users, and measure what the model reveals about them."""
