"""Vision towers, one file each: ``spec`` describes the weights, ``encode`` computes an image's features."""
