"""``/image``: the images of the store as an image service serves them."""
