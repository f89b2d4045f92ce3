"""A package of another author: an algorithm, a loss, a penalty and a feature map, one file each, and their rows."""
