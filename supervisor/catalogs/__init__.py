"""Live model lists of the vendors: what there is, and whether it reads images. No call here asks a model anything."""
