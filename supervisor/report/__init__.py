"""What run folders say, as numbers that name what they rest on: `autocad-bench report`."""
