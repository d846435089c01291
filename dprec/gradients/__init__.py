"""What each user adds to the gradient of every parameter: recorded, measured, clipped and summed."""
