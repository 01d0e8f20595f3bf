"""A real X desktop: server, window manager, input, frames, and the walls around them."""
