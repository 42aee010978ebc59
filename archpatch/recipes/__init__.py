"""What is known of packages: one TOML file each, and their loader."""
