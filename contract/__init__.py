"""What the rooms say to each other: config, records, run-folder paths, actions, broker API and client, errors."""
